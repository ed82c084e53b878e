"""A recorded result as Markdown: a heading, what made it, a table. Others get the first two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


KV_SCHEMES = ("bf16", "kv8", "kv4")
RETENTION_POLICIES = ("ram", "ram+ssd", "ram, clairvoyant", "whole lru", "blocks lru", "opt", "opt, ram+ssd")


def tables_of(name: str, result: dict[str, Any]) -> str:
    """Return the section of one result file; ``name`` is the file's without its ending."""
    made = str(result.get("date") or result.get("when") or "?")[:16].replace("T", " ")
    head = f"### {name}\n\n`{result.get('command', '?')}`, {made} UTC, {_machine(result)}"
    maker = MAKERS.get(name.partition("-")[0])
    return head if maker is None else f"{head}\n\n{maker(result)}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Return a figure as people read it: three digits, thousands set apart."""
    if value is None:
        return "-"
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _machine(result: dict[str, Any]) -> str:
    if device := result.get("device"):
        name = device.partition(" name='")[2].partition("'")[0]
        if name:
            return name
    machine: Any = result.get("machine", "?")
    if isinstance(machine, str):
        return machine
    kind = next((machine[key] for key in ("arch", "processor", "system") if machine.get(key)), "?")
    return f"{kind}, {machine.get('cores', '?')} cores"


def _engine(result: dict[str, Any]) -> str:
    rows = [
        [key.replace("_", ", "), *(number(value) for value in each.values())]
        for key, each in result["results"].items()
    ]
    return markdown(["measure (tokens/s decoding, s of prefill)", "samovar", "mlx-lm", "ratio"], rows)


def _http(result: dict[str, Any]) -> str:
    rows = [
        [
            number(each["clients"]),
            number(each["asked_tokens_per_s"]) if each["asked_tokens_per_s"] else "all it can",
            *(number(each[key]) for key in ("tokens_per_s", "cpu_us_per_token", "gap_ms_p99", "lag_ms_p99")),
        ]
        for each in result["results"]
    ]
    head = ["clients", "asked, tokens/s", "tokens/s", "CPU µs a token", "gap p99, ms", "loop lag p99, ms"]
    return markdown(head, rows)


def _kernel(result: dict[str, Any]) -> str:
    loops = result["loops"]
    names = list(next(iter(loops.values()))["times_as_fast"])
    rows = [[name, *(number(loop["times_as_fast"][name]) for loop in loops.values())] for name in names]
    return markdown(["times as fast", *loops], rows)


def _long_run(result: dict[str, Any]) -> str:
    rows = [
        [name, *(number(each[key]) for key in ("first", "last", "grown", "bound")), _yes(each["flat"])]
        for name, each in result["figures"].items()
    ]
    return markdown(["figure", "first", "last", "grown", "may grow", "flat"], rows)


def _prefill(result: dict[str, Any]) -> str:
    rows = [
        [
            key.removeprefix("chunk_"),
            *(number(each.get(road, {}).get("wall_s")) for road in ("samovar", "mlx")),
            number(each.get("wall_s_ratio")),
        ]
        for key, each in result["results"].items()
    ]
    return markdown(["chunk, tokens", "samovar, s", "MLX's own, s", "ratio"], rows)


def _restart(result: dict[str, Any]) -> str:
    parts: list[str] = []
    if "ratios_to_cold" in result:
        keys = ("prompt_tokens", "ram", "sigterm", "sigkill")
        head = ["prompt, tokens", "RAM / cold", "after SIGTERM / cold", "after SIGKILL / cold"]
        parts.append(
            markdown(head, [[number(each[key]) for key in keys] for each in result["ratios_to_cold"]])
        )
    writing, cost = (result.get(key) for key in ("decode_ratio_with_write", "cost_at_no_hits"))
    beside = f"Decode with a write beside / without: {number(writing)}."
    parts.append(f"{beside} Whole time without hits, cache on / off: {number(cost)}.")
    return "\n\n".join(parts)


def _serving(result: dict[str, Any]) -> str:
    names = list(result["servers"])
    rows = [
        [f"{label} ({each['unit']})", *(_with_ratio(each, name) for name in names)]
        for label, each in result["figures"].items()
    ]
    return markdown(["figure (ratio: times better Samovar is)", *names], rows)


def _compare(result: dict[str, Any]) -> str:
    servers = result["servers"]
    rows: list[list[str]] = []
    for label, each in result["figures"].items():
        cells = [
            _with_ratio(each, name) if name in each["values"] else _outcome(server, each["scenario"])
            for name, server in servers.items()
        ]
        rows.append([f"{label} ({each['unit']})", *cells])
    versions = [f"{name} {server['versions'].get(_first(server), '?')}" for name, server in servers.items()]
    failures = [
        f"- {name}, {scenario}: {why}"
        for name, server in servers.items()
        for scenario, found in server["outcomes"].items()
        for why in found
    ]
    skipped = [f"- {name}: skipped: {why}" for name, why in result["skipped"].items()]
    table = markdown(["figure (ratio: times better Samovar is)", *versions], rows)
    return "\n".join([table, *([""] if failures or skipped else []), *failures, *skipped])


def _first(server: dict[str, Any]) -> str:
    return next(iter(server["versions"]), "")


def _outcome(server: dict[str, Any], scenario: str) -> str:
    found = server["outcomes"].get(scenario)
    return found[0].partition(":")[0] if found else "-"


def _with_ratio(figure: dict[str, Any], server: str) -> str:
    ratio = figure["ratios"].get(server)
    return number(figure["values"].get(server)) + ("" if ratio is None else f" ({ratio:.2f})")


def _outside(result: dict[str, Any]) -> str:
    keys = ("ttft_s", "itl_s", "latency_s", "tokens_per_s", "requests")
    rows = [[label, *(number(each.get(key)) for key in keys)] for label, each in result["summary"].items()]
    return markdown(["who says", "TTFT, s", "ITL, s", "latency, s", "tokens/s", "requests"], rows)


def _storage(result: dict[str, Any]) -> str:
    rows = [
        [each["name"], number(each["value"]), each["unit"], _goal(each), _yes(each["met"])]
        for part in result["results"].values()
        for each in part
        if each["goal"] is not None
    ]
    return markdown(["figure", "measured", "unit", "goal", "met"], rows)


def _goal(figure: dict[str, Any]) -> str:
    return f"{'≥' if figure['better'] == 'more' else '≤'} {number(figure['goal'])}"


def _slow_reader(result: dict[str, Any]) -> str:
    found = result["results"]
    rounds = [each["ratio"] for each in found["rounds"]]
    rows = [[number(value) for value in (found["median_ratio"], min(rounds), max(rounds))]]
    return markdown(["rate beside slow and idle clients / alone", "least of the rounds", "most"], rows)


def _streams(result: dict[str, Any]) -> str:
    keys = ("aggregate_tps_whole", "decode_tps_stream", "ttft_max_s")
    schemes = {name: result[name] for name in KV_SCHEMES if not isinstance(result.get(name, ""), str)}
    rows = [
        [scheme, count, *(number(each.get(key)) for key in keys)]
        for scheme, counts in schemes.items()
        for count, each in counts.items()
    ]
    said = [f"{name}: {result[name]}." for name in KV_SCHEMES if isinstance(result.get(name), str)]
    head = ["KV", "streams", "aggregate, tokens/s", "decode of a stream, tokens/s", "longest TTFT, s"]
    return "\n\n".join([markdown(head, rows), *said])


def _retention(result: dict[str, Any]) -> str:
    head = ["trace, RAM for", *RETENTION_POLICIES, "ram+ssd, restores", "ram+ssd, written / distinct"]
    return markdown(
        head,
        [
            [f"{trace}, {capacity:.0%}", *_retention_cells(found["figures"], capacity)]
            for trace, found in result["results"].items()
            for capacity in dict.fromkeys(each["capacity"] for each in found["figures"])
        ],
    )


def _retention_cells(figures: list[dict[str, Any]], capacity: float) -> list[str]:
    by = {each["policy"]: each for each in figures if each["capacity"] == capacity}
    hits = [number(by[name]["hit"] if name in by else None) for name in RETENTION_POLICIES]
    disk = by.get("ram+ssd", {})
    return [*hits, number(disk.get("restores")), number(disk.get("written"))]


def _yes(met: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "-"}[met]


MAKERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "engine": _engine,
    "http": _http,
    "kernel": _kernel,
    "long_run": _long_run,
    "prefill": _prefill,
    "restart": _restart,
    "serving": _serving,
    "compare": _compare,
    "outside": _outside,
    "retention": _retention,
    "storage": _storage,
    "streams": _streams,
    "slow_reader": _slow_reader,
}
