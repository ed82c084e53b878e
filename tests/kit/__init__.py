"""Test kit for actors: virtual time, a system that tests can steer, probes, and checks at the end.

``virtual`` runs an async test under virtual time. ``KitSystem`` runs a tree, lets the test step single
messages, settle, advance the clock and crash actors, and fails the test on whatever it left behind.
"""

from .loop import VirtualLoop, virtual
from .probe import Probe
from .system import KitSystem, LeftBehind

__all__ = ["KitSystem", "LeftBehind", "Probe", "VirtualLoop", "virtual"]
