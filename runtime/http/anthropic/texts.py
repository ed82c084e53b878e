"""Parts of a request as JSON text."""

from __future__ import annotations

import json

from ..errors import bad_value


def json_text(value: object, path: str) -> str:
    """Return ``value`` as JSON, spaced as models write it. Raises HttpError 400 where it is too deep."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise bad_value(path, f"{path} is nested too deeply.") from error
