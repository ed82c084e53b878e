"""Checkpoints whose key says everything about them: what they can serve, and every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.kit.states import SIGNATURE, FakeState

if TYPE_CHECKING:
    from collections.abc import Iterable

Key: TypeAlias = "tuple[str, tuple[int, ...]]"

STATE_BYTES = 4096
"""Bytes a token, besides its id."""
RING_TOKENS = 5
NAMESPACES = ("", "ring", "state", "late")
"""One for each way of serving: any prefix; any until the ring wraps; only itself; what is long enough."""


def lowest(key: Key) -> int:
    """Return the shortest prefix that a checkpoint serves, its own length where it cannot be trimmed."""
    namespace, ids = key
    match namespace:
        case "ring":
            return 0 if len(ids) <= RING_TOKENS else len(ids)
        case "state":
            return len(ids)
        case "late":
            return min(
                len(ids), 2 + ids[0]
            )  # grows with nothing: else supersession forgets short ones on purpose
        case _:
            return 0


def serves(key: Key, length: int) -> bool:
    return length == len(key[1]) or lowest(key) <= length < len(key[1])


def covers(key: Key, other: Key) -> bool:
    """Whether one checkpoint serves exactly the tokens of another."""
    length = len(other[1])
    return key[0] == other[0] and key[1][:length] == other[1] and serves(key, length)


def spec_of(key: Key) -> CheckpointSpec:
    namespace, ids = key
    trims = lowest(key) < len(ids)
    tensors = (
        TensorSpec("ids", "uint32", (len(ids),)),
        TensorSpec("state", "uint8", (len(ids) * STATE_BYTES,)),
    )
    layer = LayerSpec(SIGNATURE, len(ids), trims, lowest(key), tensors=tensors)
    return CheckpointSpec(TokenIds.of(ids), namespace, (layer,))


def state_of(key: Key) -> FakeState:
    """Return the right state of a key."""
    spec = spec_of(key)
    return FakeState(spec, [bytearray(data) for data in _content(key)])


def held_bytes(key: Key) -> int:
    return len(key[1]) * (STATE_BYTES + 4)


def key_of(namespace: str, tokens: Iterable[int]) -> Key:
    return namespace, tuple(int(each) for each in tokens)


def wrong(state: FakeState) -> str | None:
    """Say what is wrong with a state: its description or any byte."""
    key = key_of(state.spec.namespace, state.spec.tokens)
    if state.spec != spec_of(key):
        return f"{state.spec} is not how {key} was described"
    if [bytes(data) for data in state.data] != _content(key):
        return f"the bytes are not those of {key}"
    return None


def _content(key: Key) -> list[bytes]:
    namespace, ids = key
    tokens = TokenIds.of(ids).to_bytes()
    pattern = namespace.encode() + b"/" + tokens
    size = len(ids) * STATE_BYTES
    return [tokens, (pattern * (size // len(pattern) + 1))[:size]]
