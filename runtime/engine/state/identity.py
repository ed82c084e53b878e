"""The identity of a model's KV states: everything but tokens and namespace that their bytes depend on.

Model configuration, weights, tokenizer, KV scheme, and the numerical environment: the same weights give
other bytes under another MLX, device, compute type or BLAS (DESIGN §5, seed §5.1 and §5.8). The chat template
is not in it: it decides which tokens a conversation becomes, not what state tokens have.
"""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Final, cast

from blake3 import blake3

from ....storage.identity import Identity
from ..cpu.attention import ROAD
from ..cpu.products import in_pieces
from ..device import device_report
from ..errors import ModelUnreadable
from ..models.artifacts import hash_files
from ..models.fusing import fuses
from ..models.store import default_model_root
from .layers import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..device import DeviceReport
    from ..models.loading import DtypePolicy

ID_BYTES: Final = 16
TOKENIZER_FILES: Final = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_TEMPLATE_KEY: Final = "chat_template"


def default_memo() -> Path:
    """Return the file in the user's cache folder that remembers hashes of weights."""
    return default_model_root().parent / "artifact-hashes.json"


def model_identity(directory: Path, dtype: DtypePolicy, scheme: str, memo: Path | None = None) -> Identity:
    """Return the identity of the model in ``directory``, computed as ``dtype`` says, with KV ``scheme``.

    Reads every weight file the first time (seconds per gigabyte) and remembers its hash by revision in
    ``memo`` (``default_memo()`` if None). Any thread; blocks. Raises ModelUnreadable.
    """
    report = device_report()
    fields = {
        "config": _config_hash(directory),
        "weights": _weights_hash(directory, default_memo() if memo is None else memo),
        "tokenizer": _tokenizer_hash(directory),
        "kv_scheme": scheme,
        "compute_dtype": report.compute_dtype if dtype == "auto" else dtype,
        **_environment(report),
    }
    return Identity(_digest(sorted(fields.items())), fields)


def _environment(report: DeviceReport) -> dict[str, str]:
    blas = f"{report.blas.library} {report.blas.core}" if report.blas.active else "bundled"
    return {
        "mlx": report.mlx_version,
        "mlx_lm": report.mlx_lm_version,
        "device": f"{report.device} {report.architecture} {report.name}",
        "machine": f"{platform.system()} {platform.machine()}",
        "blas": blas if report.is_cpu else "none",
        "attention": ROAD if report.is_cpu else "mlx",
        **({"projections": "joined"} if fuses() else {}),
        **({"products": "in pieces"} if in_pieces() else {}),
        "layout": str(LAYOUT),
    }


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    return blake3(json.dumps(list(pairs)).encode()).hexdigest(length=ID_BYTES)


def _config_hash(directory: Path) -> str:
    content = _canonical(_read(directory / "config.json"))
    if content is None:
        raise ModelUnreadable(f"{directory}: config.json cannot be read")
    return blake3(content).hexdigest()


def _weights_hash(directory: Path, memo: Path) -> str:
    """Hash names and contents of the files that mlx-lm loads."""
    shards = sorted(directory.glob("model*.safetensors"))
    if not shards:
        raise ModelUnreadable(f"{directory} has no model*.safetensors")
    return _digest((shard.name, digest) for shard, digest in hash_files(shards, memo).items())


def _tokenizer_hash(directory: Path) -> str:
    """Hash the tokenizer's files; what is in none of them cannot change which text an id stands for."""
    present = (directory / name for name in TOKENIZER_FILES if (directory / name).is_file())
    return _digest((path.name, blake3(_tokenizer_content(path)).hexdigest()) for path in present)


def _tokenizer_content(path: Path) -> bytes:
    content = _read(path)
    if path.name != "tokenizer_config.json":
        return content
    return _canonical(content, without=_TEMPLATE_KEY) or content


def _canonical(content: bytes, without: str | None = None) -> bytes | None:
    """Return a JSON object's canonical bytes, whatever its order and spacing; None when it is none.

    With the standard library: configurations hold Infinity, which strict parsers refuse.
    """
    try:
        value = cast("object", json.loads(content))
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    kept = {key: each for key, each in cast("dict[str, object]", value).items() if key != without}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error}") from error
