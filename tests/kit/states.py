"""States of the scripted engine: their bytes tell which tokens they are of, so a wrong or torn one shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar.runtime.engine.errors import StateMismatch
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec

if TYPE_CHECKING:
    from samovar.runtime.engine.checkpoint import Segments
    from samovar.storage.tokens import TokenIds

SIGNATURE = "fake:tokens"


class FakeState:
    """``token_bytes`` a token: namespace and ids over and over. Two tensors, the second in two segments."""

    def __init__(self, spec: CheckpointSpec, data: list[bytearray]) -> None:
        self.spec = spec
        self.data = data
        self.held_bytes = sum(len(each) for each in data)

    @classmethod
    def of(
        cls,
        tokens: TokenIds,
        token_bytes: int,
        *,
        trims: bool,
        namespace: str = "",
        reusable_from: int = 0,
    ) -> FakeState:
        """Return the right state of ``tokens``."""
        size = len(tokens) * token_bytes
        tensors = (TensorSpec("ids", "uint32", (len(tokens),)), TensorSpec("state", "uint8", (size,)))
        layer = LayerSpec(SIGNATURE, len(tokens), trims, reusable_from, tensors=tensors)
        spec = CheckpointSpec(tokens, namespace, (layer,))
        return cls(spec, [bytearray(tokens.to_bytes()), bytearray(_pattern(spec, size))])

    def segments(self) -> Segments:
        ids, state = (memoryview(each).toreadonly() for each in self.data)
        middle = len(state) // 2
        return [[ids], [state[:middle], state[middle:]]]

    def wrong(self) -> str | None:
        """Say what is wrong with its bytes."""
        ids, state = self.data
        if bytes(ids) != self.spec.tokens.to_bytes():
            return "the ids are not those of its key"
        if bytes(state) != _pattern(self.spec, len(state)):
            return "the state is torn"
        return None


def _pattern(spec: CheckpointSpec, size: int) -> bytes:
    pattern = spec.namespace.encode() + spec.tokens.to_bytes()
    return (pattern * (size // len(pattern) + 1))[:size]


class FakeTarget:
    def __init__(self, spec: CheckpointSpec) -> None:
        self._spec = spec
        self._data = [bytearray(tensor.nbytes) for tensor in spec.tensors()]

    def segments(self) -> Segments:
        return [[memoryview(each)] for each in self._data]

    def finish(self) -> FakeState:
        return FakeState(self._spec, self._data)


class FakeRestorer:
    def open(self) -> None:
        """Nothing to open."""

    def allocate(self, spec: CheckpointSpec) -> FakeTarget:
        if [layer.signature for layer in spec.layers] != [SIGNATURE]:
            raise StateMismatch("this is no state of the scripted engine")
        return FakeTarget(spec)

    def close(self) -> None:
        """Nothing to close."""
