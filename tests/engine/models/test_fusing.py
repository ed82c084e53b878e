from __future__ import annotations

import threading
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from samovar.runtime.engine.models.fusing import Part, fuse_projections, fuses

DIMS = 16


class Attention(nn.Module):
    """Projects as mlx-lm's attention does; keys and values of ``other`` where it is set."""

    def __init__(self, widths: tuple[int, ...] = (16, 8, 8), bias: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(DIMS, width, bias=bias) for width in widths)
        self.other: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        memory = x if self.other is None else self.other
        return mx.concatenate([self.q_proj(x), self.k_proj(memory), self.v_proj(memory)], axis=-1)


def inputs(rows: int = 3) -> mx.array:
    return mx.random.normal((rows, 2, DIMS), key=mx.random.key(1))


def same(left: mx.array, right: mx.array) -> bool:
    return bool(mx.allclose(left, right, rtol=1e-5, atol=1e-5).item())


def joined(module: Any) -> bool:
    return isinstance(module.q_proj, Part)


@pytest.mark.parametrize("bias", [False, True])
def test_joined_projections_give_what_they_gave_apart(bias: bool) -> None:
    module = Attention(bias=bias)
    x = inputs()
    before = module(x)
    assert fuse_projections(module, lambda: module(inputs(1))) == 1
    assert joined(module)
    assert same(module(x), before)


def test_quantised_projections_are_joined_too() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)

        def __call__(self, x: mx.array) -> mx.array:
            return self.gate_proj(x) * self.up_proj(x)

    module = Wide()
    nn.quantize(module, group_size=32, bits=4)  # pyright: ignore[reportUnknownMemberType]
    x = mx.random.normal((2, 64), key=mx.random.key(2))
    before = module(x)
    assert fuse_projections(module, lambda: module(x)) == 1
    assert same(module(x), before)


def test_projections_of_different_inputs_are_set_apart_again() -> None:
    module = Attention()
    module.other = inputs(3) * 2.0
    x = inputs()
    before = module(x)
    assert fuse_projections(module, lambda: module(x)) == 0
    assert not joined(module)
    assert same(module(x), before)


def test_a_model_that_looks_into_its_projections_stays_whole() -> None:
    class Peeks(Attention):
        def __call__(self, x: mx.array) -> mx.array:
            return super().__call__(x) * self.q_proj.weight.shape[0]

    module = Peeks()
    before = module(inputs())
    assert fuse_projections(module, lambda: module(inputs(1))) == 0
    assert same(module(inputs()), before)


def test_layers_of_other_classes_or_kinds_are_left_alone() -> None:
    class Own(nn.Linear):
        pass

    module = Attention()
    module.k_proj = Own(DIMS, 8, bias=False)
    assert fuse_projections(module, lambda: module(inputs(1))) == 0
    mixed = Attention()
    mixed.v_proj = nn.Linear(DIMS, 8, bias=True)
    assert fuse_projections(mixed, lambda: mixed(inputs(1))) == 0
    assert not joined(mixed)


def test_nothing_of_an_input_stays_behind() -> None:
    module = Attention()
    fuse_projections(module, lambda: module(inputs(1)))
    module(inputs())
    joint = vars(module.q_proj)["_joint"]
    assert vars(joint)["_mine"].open is None


def test_threads_do_not_see_each_others_inputs() -> None:
    module = Attention()
    plain = module(inputs())
    fuse_projections(module, lambda: module(inputs(1)))
    mx.eval(module.parameters())  # pyright: ignore[reportUnknownMemberType]
    answers: list[bool] = []

    def work() -> None:
        stream = mx.new_stream(mx.default_device())
        with mx.stream(stream):
            answers.extend(same(module(inputs()), plain) for _ in range(20))

    mx.eval(plain)  # pyright: ignore[reportUnknownMemberType]
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 40
    assert all(answers)


def test_only_cuda_joins() -> None:
    assert fuses() is (mx.default_device().type != mx.DeviceType.cpu and mx.cuda.is_available())
