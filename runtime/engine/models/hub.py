"""Models of the Hugging Face hub, through its own client and into its own cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..errors import ModelFetchFailed, ModelNotFound
from .hub_progress import HubProgress
from .progress import Progress, ProgressEvent, silent

if TYPE_CHECKING:
    from collections.abc import Callable

_WANTED = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")


class _Planned(Protocol):
    """What a dry run says of one file."""

    @property
    def file_size(self) -> int: ...

    @property
    def will_download(self) -> bool: ...


def fetch_hub_repository(repository: str, progress: Progress = silent) -> Path:
    """Return the local snapshot of ``org/name``, downloading it when the hub's cache lacks it.

    Cache folder, token and offline mode are those of the client's own settings (``HF_HOME``,
    ``HF_HUB_OFFLINE``). A snapshot that is there is used without asking the hub. No Python file of a
    repository is fetched. Raises ModelNotFound when the hub says so, else ModelFetchFailed.
    """
    import huggingface_hub  # noqa: PLC0415 - costs time that other sources need not pay
    from huggingface_hub import errors  # noqa: PLC0415

    snapshot = cast("Callable[..., Any]", huggingface_hub.snapshot_download)
    wanted = list(_WANTED)
    try:
        return Path(snapshot(repository, allow_patterns=wanted, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError):
        progress(ProgressEvent("download", 0, None, repository))
    try:
        total_bytes = _bytes_to_fetch(snapshot, repository)
        bars = HubProgress(progress, repository, total_bytes).bars()
        path = Path(snapshot(repository, allow_patterns=wanted, tqdm_class=bars))
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(f"{repository}: no such repository, or access to it is not granted") from error
    except (OSError, ValueError, RuntimeError, errors.CachedRepoTreeNotFoundError) as error:
        raise ModelFetchFailed(f"{repository}: the hub's download failed: {_short(error)}") from error
    progress(ProgressEvent("download", total_bytes, total_bytes, repository))
    return path


def _bytes_to_fetch(snapshot: Callable[..., Any], repository: str) -> int:
    """Ask how much is to come; 0 where nobody can tell. What is wrong is told by the fetch itself."""
    bars = HubProgress(silent, repository, 0).bars()
    try:
        planned = cast(
            "list[_Planned]",
            snapshot(repository, allow_patterns=list(_WANTED), dry_run=True, tqdm_class=bars),
        )
    except (OSError, ValueError, RuntimeError):
        return 0
    return sum(file.file_size for file in planned if file.will_download)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository with safetensors in the hub's cache. ``path`` is its folder there."""

    repository: str
    path: Path
    size_bytes: int
    last_used_s: float


def cached_hub_models() -> tuple[HubModel, ...]:
    """Return what the hub's client has fetched for whomever, by name; empty where it has no cache."""
    import huggingface_hub  # noqa: PLC0415 - see above
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        info = huggingface_hub.scan_cache_dir()
    except (errors.CacheNotFound, OSError, ValueError):
        return ()
    found = [
        HubModel(repo.repo_id, repo.repo_path, repo.size_on_disk, repo.last_accessed)
        for repo in info.repos
        if repo.repo_type == "model"
        and any(
            file.file_name.endswith(".safetensors") for revision in repo.revisions for file in revision.files
        )
    ]
    return tuple(sorted(found, key=lambda model: model.repository))


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
