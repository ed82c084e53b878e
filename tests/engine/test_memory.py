from __future__ import annotations

import mlx.core as mx
from samovar.runtime.engine.device import device_report
from samovar.runtime.engine.memory import MlxMemoryGauge

SIZE = 8 << 20


def test_evaluated_arrays_are_counted_and_given_back() -> None:
    gauge = MlxMemoryGauge()
    before = gauge().active_bytes
    array = mx.zeros((SIZE,), mx.uint8)
    mx.eval(array)
    assert gauge().active_bytes == before + SIZE
    del array
    assert gauge().active_bytes == before


def test_weights_that_mlx_does_not_count_are_added() -> None:
    assert MlxMemoryGauge(SIZE)().active_bytes == MlxMemoryGauge()().active_bytes + SIZE


def test_the_smaller_limit_wins() -> None:
    gauge = MlxMemoryGauge()
    total = device_report().total_memory_bytes
    assert total is not None
    assert 0 < gauge().limit_bytes <= total
    old = mx.set_memory_limit(SIZE)
    try:
        assert gauge().limit_bytes == SIZE
        mx.set_memory_limit(total * 2)
        assert gauge().limit_bytes == total
    finally:
        mx.set_memory_limit(old)
