"""Which OpenAI fields are taken without effect, and which are refused and why.

Nothing that could change a reply is ever ignored. A field of a request is one of:

- supported: it stands in the model of its request and does what it says;
- inert (``InertFields``): OpenAI's labels and hints. They cannot change which tokens are right, ordinary
  clients send them, and refusing them would break those clients;
- refused (the others here): it asks for a feature that does not exist; 400 ``unsupported_parameter``, unless
  the value asks for what happens anyway;
- anything else: 400 ``unknown_parameter``, as OpenAI answers, with the nearest known name: a misspelt
  ``max_token`` must not silently become the default.

A null is the same as an absent field everywhere.
"""

from typing import Annotated

from pydantic import Field

from .base import ApiModel
from .kinds import Only

_OFF = False
_LEGACY_CALLS = "it was replaced by tools and tool_choice."
_CONSTRAIN_BY = "constrain replies by response_format or structured_outputs."


class InertFields(ApiModel):
    """Labels and hints."""

    user: object = None
    metadata: object = None
    store: object = None
    safety_identifier: object = None
    prompt_cache_retention: object = None
    prediction: Annotated[object, Field(description="Promises speed only.")] = None
    verbosity: object = None


class RefusedFields(ApiModel):
    """What neither chats nor completions can have."""

    min_tokens: Annotated[object, Only("replies have no lower limit.", 0)] = None
    ignore_eos: Annotated[object, Only("replies always end at the model's end token.", _OFF)] = None
    grammar: Annotated[object, Only(_CONSTRAIN_BY, "")] = None
    json_schema: Annotated[object, Only(_CONSTRAIN_BY)] = None


class ChatRefusedFields(RefusedFields):
    """What chats cannot have."""

    functions: Annotated[object, Only(_LEGACY_CALLS, [])] = None
    function_call: Annotated[object, Only(_LEGACY_CALLS, "none", "auto")] = None
    modalities: Annotated[object, Only("only text is produced.", ["text"])] = None
    audio: Annotated[object, Only("only text is produced.")] = None
    web_search_options: Annotated[object, Only("there is no web search.")] = None
    best_of: Annotated[object, Only("ask for n choices and take the best.", 1)] = None
    echo: Annotated[object, Only("use the prompt that you have.", _OFF)] = None


class CompletionRefusedFields(RefusedFields):
    """What completions cannot have."""

    suffix: Annotated[object, Only("text cannot be filled in before a suffix.", "")] = None
