"""The body of ``POST /v1/responses``.

What is taken: the fields of OpenAI's that can be honoured here, and the extensions that chat completions
have too (top_k, seed, stop, …). Labels and hints that cannot change which tokens are right are taken without
effect. What asks for something that is not here is refused by name, unless its value asks for what happens
anyway.
"""

from typing import Annotated, Final, Literal, TypeAlias

from .base import ApiModel
from .calls import ServiceTier, SessionId
from .kinds import Chars, Entries, Items, Only, Whole
from .responses_items import Input, ItemId
from .responses_tools import FlatChoice, FlatTools, TextFormat
from .sampling import Limit, SamplingFields, StopFields
from .templates import Effort, TemplateFields, template_kwargs_of

MAX_TOP_LOGPROBS: Final = 20
MAX_INCLUDES: Final = 16
MAX_METADATA: Final = 16
_MAX_SALT_CHARS: Final = 1024
_OFF: Final = False

LOGPROBS: Final = "message.output_text.logprobs"
PORTABLE_REASONING: Final = "reasoning.encrypted_content"
Include: TypeAlias = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of items that never come from here, so there is nothing to leave out.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
Summary: TypeAlias = Literal["auto", "concise", "detailed"]
Key: TypeAlias = Annotated[str, Chars(1, 64)]
Label: TypeAlias = Annotated[str, Chars(0, 512)]


class ReasoningSettings(ApiModel):
    """``effort`` goes to the chat template. Summaries are not written: reasoning is given whole."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Annotated[object, Only("the chat template decides what it shows again.", "auto")] = None
    mode: Annotated[object, Only("there is one mode.", "standard")] = None


class TextSettings(ApiModel):
    """What the text must look like; ``verbosity`` is a hint without effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(ApiModel):
    """``include_obfuscation`` pads events against observers of TLS sizes; without effect here."""

    include_obfuscation: bool | None = None
    include_usage: bool | None = None


class ResponsesBody(SamplingFields, StopFields, TemplateFields):
    """A request for one response. ``store`` is on unless it is false; ``cache_salt``: who shares prompts."""

    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Limit | None = None
    tools: FlatTools | None = None
    tool_choice: FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: Annotated[list[Include], Items(0, MAX_INCLUDES)] | None = None
    top_logprobs: Annotated[int, Whole(0, MAX_TOP_LOGPROBS)] | None = None
    service_tier: ServiceTier | None = None
    metadata: Annotated[dict[Key, Label], Entries(MAX_METADATA)] | None = None
    session_id: SessionId | None = None
    prompt_cache_key: SessionId | None = None
    cache_salt: Annotated[str, Chars(1, _MAX_SALT_CHARS)] | None = None
    # Labels and hints without effect.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, object] | None = None
    max_tool_calls: Annotated[int, Whole(1, 2**31 - 1)] | None = None  # counts calls of built-in tools alone
    # What is not here.
    truncation: Annotated[object, Only("prompts are never cut.", "disabled")] = None
    background: Annotated[object, Only("responses are generated while you wait.", _OFF)] = None
    background_options: Annotated[object, Only("responses are generated while you wait.")] = None
    conversation: Annotated[object, Only("use previous_response_id.")] = None
    prompt: Annotated[object, Only("there are no stored prompts.")] = None
    context_management: Annotated[object, Only("prompts are never compacted.", [])] = None
    prompt_cache_options: Annotated[object, Only("all prompts are cached alike.", {})] = None
    moderation: Annotated[object, Only("nothing is moderated.")] = None
    image: Annotated[object, Only("images are neither read nor made.")] = None
    access_programs: Annotated[object, Only("there are none.")] = None

    @property
    def template_kwargs(self) -> dict[str, object]:
        """What the client has to say to the chat template."""
        return template_kwargs_of(self, None if self.reasoning is None else self.reasoning.effort)

    @property
    def wants_logprobs(self) -> bool:
        """Whether text comes with the probabilities of its tokens."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def wants_portable_reasoning(self) -> bool:
        """Whether reasoning items carry what a client may send back instead of their content."""
        return PORTABLE_REASONING in (self.include or ())
