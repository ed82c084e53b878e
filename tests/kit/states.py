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
    """``token_bytes`` a token: the ids over and over. Two tensors, the second in two segments."""

    def __init__(self, spec: CheckpointSpec, data: list[bytearray]) -> None:
        self.spec = spec
        self.data = data
        self.held_bytes = sum(len(each) for each in data)

    @classmethod
    def of(cls, tokens: TokenIds, token_bytes: int, *, trims: bool) -> FakeState:
        """Return the right state of ``tokens``."""
        size = len(tokens) * token_bytes
        tensors = (TensorSpec("ids", "uint32", (len(tokens),)), TensorSpec("state", "uint8", (size,)))
        layer = LayerSpec(SIGNATURE, len(tokens), trims, tensors=tensors)
        pattern = tokens.to_bytes()
        state = bytearray((pattern * (size // len(pattern) + 1))[:size])
        return cls(CheckpointSpec(tokens, "", (layer,)), [bytearray(pattern), state])

    def segments(self) -> Segments:
        ids, state = (memoryview(each).toreadonly() for each in self.data)
        middle = len(state) // 2
        return [[ids], [state[:middle], state[middle:]]]

    def wrong(self) -> str | None:
        """Say what is wrong with its bytes."""
        ids, state = self.data
        pattern = self.spec.tokens.to_bytes()
        if bytes(ids) != pattern:
            return "the ids are not those of its key"
        if bytes(state) != (pattern * (len(state) // len(pattern) + 1))[: len(state)]:
            return "the state is torn"
        return None


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
