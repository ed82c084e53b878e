from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.config import Config, ConfigError, load
from samovar.runtime.config.literals import parse_value, write_value
from samovar.runtime.config.render import json_schema, to_json, to_toml
from samovar.runtime.config.tree import all_keys

if TYPE_CHECKING:
    from pathlib import Path

SECRET = ["server.api_keys=open-sesame,second", "server.admin_keys=open-barley"]


def test_secrets_are_shown_nowhere() -> None:
    loaded = load(assignments=SECRET)
    shown = to_toml(loaded) + json.dumps(to_json(loaded)) + repr(loaded.origins)
    assert "open-" not in shown
    assert 'api_keys = "2 hidden"' in shown


def test_a_mask_cannot_be_loaded_as_a_key(tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(to_toml(load(assignments=SECRET)))
    with pytest.raises(ConfigError) as caught:
        load([file])
    assert {problem.key for problem in caught.value.problems} == {"server.api_keys", "server.admin_keys"}


def test_what_is_shown_loads_as_what_was_in_force(tmp_path: Path) -> None:
    first = load(
        assignments=[
            "lanes.decode_gap=0.1234567",
            "cache.ssd.max=10000001",
            "cache.ssd.free_floor=7.25%",
            "lanes.prefill_chunk=64",
            'model.aliases=["gpt-4o", "ünï \\"quoted\\" \\u007f𝄞"]'.replace(" \\u007f", ""),
            "server.unix_socket=/run/samovar.sock",
        ]
    )
    file = tmp_path / "shown.toml"
    file.write_text(to_toml(first))
    assert load([file]).config == first.config


def test_every_value_is_shown_with_its_origin() -> None:
    shown = to_toml(load(assignments=["lanes.batch=3"]))
    assert re.search(r"^batch = 3 +# --set lanes.batch$", shown, re.MULTILINE)
    assert re.search(r'^prefill_chunk = "auto" +# default: 2048, 512 on a CPU$', shown, re.MULTILINE)
    lines = [line for line in shown.splitlines() if line and not line.startswith("[")]
    assert len(lines) == len(list(all_keys()))
    assert all("  # " in line for line in lines)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_string_survives_being_written(text: str) -> None:
    assert parse_value(write_value(text)) == text


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text("ab\"'\\\n"), max_size=4))
def test_any_table_survives_being_written(table: dict[str, str]) -> None:
    assert parse_value(write_value(dict(table))) == table


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, member in schema["properties"].items():
        if member.get("additionalProperties") is False:
            found |= leaves(member, (*path, name))
        else:
            found[".".join((*path, name))] = member
    return found


def test_the_schema_names_every_key_with_its_meaning_and_default() -> None:
    schema = json_schema()
    found = leaves(schema)
    assert found.keys() == {spec.dotted for spec in all_keys()}
    assert all(member["description"] for member in found.values())
    assert found["cache.ram.max"]["default"] == "8GiB"
    assert found["lanes.prefill_chunk"]["default"] == "auto"
    json.dumps(schema)


def accepts(schema: dict[str, Any], value: object) -> bool:
    """Judge a value by the few JSON Schema words that the kinds use."""
    if "anyOf" in schema:
        return any(accepts(part, value) for part in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    if not isinstance(value, kinds[schema["type"]]) or (
        isinstance(value, bool) != (schema["type"] == "boolean")
    ):
        return False
    if isinstance(value, str) and "pattern" in schema:
        return re.search(schema["pattern"], value) is not None
    if isinstance(value, list):
        return all(accepts(schema["items"], item) for item in value)
    return isinstance(value, (str, dict)) or schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    )


RAW = (
    st.booleans()
    | st.integers(-10, 100_000)
    | st.floats(-1, 1e6)
    | st.sampled_from(
        ["auto", "off", "", "8GiB", "5%", "250ms", "bf16", "kv4", "turbo:k8v3", "json", "x y", "1.5KiB"]
    )
    | st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True)
)


@settings(deadline=None)
@given(st.sampled_from(list(all_keys())), RAW)
def test_whatever_loads_satisfies_the_schema(spec: Any, raw: object) -> None:
    try:
        value = spec.kind.read(raw)
    except ValueError:
        return
    member = leaves(json_schema())[spec.dotted]
    assert accepts(member, raw)
    assert spec.kind.read(spec.kind.write(value)) == value


def test_a_schema_refuses_what_loading_refuses() -> None:
    found = leaves(json_schema())
    wrong = {
        "server.port": 70000,
        "kv.scheme": "kv3",
        "cache.ram.max": "lots",
        "lanes.batch": "8",
        "server.host": "",
    }
    assert not any(accepts(found[key], value) for key, value in wrong.items())


def test_shown_toml_is_toml() -> None:
    assert tomllib.loads(to_toml(load()))["server"]["port"] == Config().server.port
