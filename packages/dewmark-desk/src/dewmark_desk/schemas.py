"""The shapes of requests and responses, for validation and for the OpenAPI document.

Responses are built as plain dictionaries, because validating thousands of token scores would be slow; they
are described here only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dewmark.types import ForgeryTest, Looks

MAX_TEXTS = 1_000  # a service may allow fewer: `Settings.texts` and `Settings.audit_texts`
MAX_AUDIT_TEXTS = 100_000

VerdictName = Literal["marked", "not_marked", "too_short", "unsupported_language"]
Read = Field(True, description="Whether the service's reader, if it has one, reads the texts.")
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
TenantId = Annotated[str, Field(max_length=64)]
Tenants = Annotated[list[TenantId], Field(min_length=1, max_length=1000, fail_fast=True)]
TestName = Annotated[str, Field(max_length=64)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DetectRequest(_Request):
    """Texts to check: either ``text`` or ``texts``. A prompt serves as context and is never scored."""

    text: str | None = Field(None, examples=["The old bridge over the river was built by …"])
    texts: list[str] | None = Field(None, min_length=1, max_length=MAX_TEXTS, fail_fast=True)
    prompt: str | None = None
    prompts: list[str | None] | None = Field(None, max_length=MAX_TEXTS, fail_fast=True)
    tenants: Tenants | None = None
    fpr: Share | None = Field(None, description="False-positive rate at which a text counts as marked.")
    test: TestName | None = Field(None, description="Default: the scheme's first test.")
    tokens: bool = Field(False, description="Include every token's score and offsets.")
    read: bool = Read


class AuditText(_Request):
    """A text that is known to be unmarked."""

    text: str
    id: str | None = Field(None, max_length=1000)
    language: str | None = Field(None, max_length=35)
    prompt: str | None = None


class AuditRequest(_Request):
    """Unmarked texts on which to measure a key's false-positive rate."""

    texts: list[AuditText] = Field(min_length=1, max_length=MAX_AUDIT_TEXTS, fail_fast=True)
    tenant: TenantId | None = None
    test: TestName | None = None


class BatchText(_Request):
    """A text to check; its ``id`` comes back with its result."""

    text: str
    id: str | None = Field(None, max_length=200)
    prompt: str | None = None


class BatchRequest(_Request):
    """Texts to check in the background."""

    texts: list[BatchText] = Field(min_length=1, max_length=MAX_AUDIT_TEXTS, fail_fast=True)
    tenants: Tenants | None = None
    fpr: Share | None = None
    test: TestName | None = None
    read: bool = Read


class ReportRequest(_Request):
    """A text to report on."""

    text: str
    prompt: str | None = None
    tenants: Tenants | None = None
    fpr: Share | None = Field(None, description="The level of the verdict; by default the service's own.")
    name: str | None = Field(None, max_length=200, description="What to call the text in the report.")
    page: bool = Field(False, description="Also return the report as a page to print.")


class TableRequest(_Request):
    """Signed reports to put into one table."""

    documents: list[Annotated[str, Field(max_length=1_000_000)]] = Field(
        min_length=1, max_length=MAX_TEXTS, fail_fast=True
    )


class VerifyRequest(_Request):
    """A signed document, and optionally the text that it should be about."""

    document: str = Field(max_length=1_000_000)
    text: str | None = Field(None, max_length=1_000_000)


class RewriteRequest(_Request):
    """A text to mark, and the share of its words that may change."""

    text: str
    tenant: TenantId | None = Field(None, description="Default: the token's only tenant.")
    budget: float = Field(0.1, gt=0.0, le=0.5)


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str
    type: str
    message: str
    param: None = None
    request_id: str


class ErrorResponse(BaseModel):
    """The shape of every error response."""

    error: ErrorDetail


class Language(BaseModel):
    """The text's language, and whether the scheme's encoder knows it; null where that is not clear."""

    code: str | None
    name: str | None
    supported: bool | None


class Token(BaseModel):
    """A token: offsets count Unicode characters; on unmarked text, scores are standard normal."""

    text: str
    start: int
    end: int
    score: float
    scored: bool


class NotTested(BaseModel):
    """A tenant whose mark could not be looked for in this text."""

    tenant: str
    scheme: str
    reason: VerdictName


class TenantResult(BaseModel):
    """The result for one tenant's key, corrected like the verdict on the text."""

    tenant: str
    p_value: float | None
    z: float | None
    verdict: VerdictName


class PassageResult(BaseModel):
    """A marked passage; ``p_value`` is corrected for all passages and keys tried. Jobs keep no ``text``."""

    start: int
    end: int
    text: str | None
    z: float
    p_value: float
    p_alone: float
    effective_length: float
    tokens: int
    share: float
    key_fingerprint: str
    tenant: str


class CoverageResult(BaseModel):
    """Where in a marked text the mark is.

    ``extent`` is "part" if the rest of the text carries no evidence, and would if it were marked like the
    passages; "whole" if the rest is marked too; null if the text does not tell.
    """

    extent: Literal["whole", "part"] | None
    share: float = Field(description="The expected share of marked tokens in the text.")
    p_rest: float | None = Field(description="The p-value of the text outside the passages.")
    passages: list[PassageResult]


class FoundShare(BaseModel):
    """How many of 100 marked texts of this effective length are found, as measured on texts of ``host``.

    ``own`` says whether the operator measured it for this detector (``dewmark power``), ``language`` in which
    language, if that is known. The share is never 100.
    """

    found_in_100: int
    host: str
    texts: int
    own: bool
    language: str | None


class ManifestResult(BaseModel):
    """The signed manifest of a text, and what it says beside the mark."""

    state: Literal["absent", "trusted", "untrusted", "altered", "broken", "unread"]
    signer: str | None
    generator: str | None
    model: str | None
    time: str | None
    key_fingerprint: str | None
    layers: str | None
    sentence: str


class Result(BaseModel):
    """The verdict on one text; ``p_value`` is corrected for all ``looks``: keys and passages."""

    verdict: VerdictName
    p_value: float | None
    p_value_of_key: float | None
    keys: int | None
    looks: Looks | None
    coverage: CoverageResult | None = Field(description="If the text is marked and passages were found.")
    manifest: ManifestResult | None = Field(None, description="If the text has one, or roots are given.")
    n_hypotheses: int | None = Field(description="Members, payloads and epochs that p_value pays for.")
    member: int | None = Field(description="The member of the key's ring that marked the text, if clear.")
    payload: int | None = Field(description="The message that the text carries, if clear.")
    payload_confidence: float | None
    epoch: str | None = Field(description="The epoch of the key that marked the text, if clear.")
    forgery: ForgeryTest | None = Field(description="If the text is marked and this was tested.")
    tenant: str | None
    one_in: str
    sentence: str
    technique: str = Field(description="What the verdict rests on: the scheme and its statistical test.")
    z: float | None
    z_meaning: float | None = Field(description="The score by the meaning of words, if the scheme has one.")
    z_form: float | None = Field(description="The score by the exact words, if the scheme has one.")
    score: float | None
    effective_length: float | None
    tokens_scored: int | None
    test: str
    fpr: float
    scheme: str
    key_fingerprint: str | None
    reader: str | None = Field(None, description="The language model that read the text, if one did.")
    language: Language
    carrying: float | None = Field(
        description="The share of the text's words that can carry the mark, if the scheme says."
    )
    leaves_no_room: bool = Field(
        description="More of such a text would not help: code, a list, a language without words to mark."
    )
    level_of_whole: float | None = Field(description="The level for the whole text under each single key.")
    power: FoundShare | None = Field(description="Only for texts that are not marked.")
    characters: int
    rounded: bool = Field(description="Whether the numbers were left out: a public token sees verdicts only.")
    tokens: list[Token] | None
    per_tenant: list[TenantResult] | None
    not_tested: list[NotTested] | None = Field(None, description="Marks on which the text allows no verdict.")


class DetectResponse(BaseModel):
    """One result per text, in order."""

    request_id: str
    results: list[Result]


class JobState(BaseModel):
    """The state of a job."""

    id: str
    kind: Literal["audit", "detect"]
    state: Literal["queued", "running", "done", "failed"]
    done: int
    total: int
    created: str
    finished: str | None
    tenant: str | None
    error: str | None
    result: dict[str, Any] | None = Field(description="The report or the summary, once the job is done.")


class JobResponse(BaseModel):
    """An accepted job."""

    request_id: str
    job: JobState


class JobList(BaseModel):
    """The caller's jobs, newest first, without their results; ``next`` is the cursor of the next page."""

    jobs: list[JobState]
    next: str | None


class BatchResult(Result):
    """The result of one text of a batch."""

    number: int
    id: str | None


class FailedResult(BaseModel):
    """A text of a batch that could not be examined; the others could."""

    number: int
    id: str | None
    error: str


class ResultList(BaseModel):
    """The results of a batch so far, in order; ``next`` is the cursor of the next page."""

    results: list[BatchResult | FailedResult]
    next: int | None


class ReportResponse(BaseModel):
    """A signed report (JWS), its claims, and on request the same as a page."""

    request_id: str
    document: str
    claims: dict[str, Any]
    page: str | None


class TableResponse(BaseModel):
    """A table (CSV), and the signed document (JWS) that names its SHA-256."""

    request_id: str
    table: str
    document: str
    claims: dict[str, Any]


class VerifyResponse(BaseModel):
    """Whether a document is authentic; ``text_matches`` is null if no text was given."""

    request_id: str
    valid: bool
    reason: str | None
    kind: str | None
    signer: str | None
    claims: dict[str, Any] | None
    text_matches: bool | None


class Change(BaseModel):
    """Characters [start, end) of the text, which read ``old``, would become ``new``."""

    start: int
    end: int
    old: str
    new: str


class RewriteResponse(BaseModel):
    """The changes, the most valuable first; they do not overlap."""

    request_id: str
    tenant: str
    changes: list[Change]


class ExtractResponse(BaseModel):
    """The text of a document."""

    request_id: str
    name: str
    text: str
    characters: int


class ExampleResponse(BaseModel):
    """A text to try: two paragraphs of ``marked`` carry the mark of ``tenant``, ``unmarked`` carries none."""

    tenant: str
    marked: str
    unmarked: str


class TenantInfo(BaseModel):
    """A key that the caller may use."""

    id: str
    scheme: str
    key_fingerprint: str | None
    host: str
    tests: list[str]


class Whoami(BaseModel):
    """The caller's permissions and the service's limits."""

    authenticated: bool
    open: bool
    token: str | None
    scopes: list[str]
    budget_left: int | None
    tenants: list[TenantInfo]
    languages: list[str] | None
    limits: dict[str, float]
    defaults: dict[str, float]
    signs: bool
    public_page: str | None = Field(description="The page of the public detector, which sees no text.")
    generate: dict[str, list[str]] | None
    rewrites: bool = Field(description="Whether the caller may have texts rewritten.")
    version: str
