"""What a run IS: frozen values, checked when they are built, with a JSON round trip and a fingerprint.

A value here never says where or how a run is launched (that is `Resources`, a store path, a tracker);
it says what is trained. `RunSpec.fingerprint` is the identity of a run: same fingerprint, same numbers.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from ladder.architecture import ModelSpec
from ladder.resources import Resources
from ladder.values import Count, CountOrZero, Fraction, Many, Name, Value, Weights, digest

GATE_LEVELS = (0.5, 0.9, 0.99)  # those of a frozen forecast


class OptimizerSpec(Value):
    """Which optimizer, and its two peak learning rates (see ladder.train.optimizer).

    adamw: AdamW for every tensor. muonh: MuonH for matrices and AdamH for the output head, steps that keep
    a tensor's norm; Adam for embeddings, router, head gates, gains and ShortConv taps.
    """

    kind: Literal["adamw", "muonh"] = "adamw"
    lr: PositiveFloat  # embeddings, gains, ShortConv taps; muonh: of all that Adam trains
    matrix_lr: PositiveFloat  # attention, experts, output head and, with adamw, router and head gates
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95  # of MuonH
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    # Decoupled, times the learning rate. adamw: of matrices, constant. muonh: of router and head gates alone,
    # falling linearly to 0 at the last step.
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip_norm: PositiveFloat | None = 1.0  # global gradient norm


class ScheduleSpec(Value):
    """Linear warm-up from 0, then linear decay to `final` x peak at the last step (see ladder.schedule)."""

    warmup: Fraction = 0.01  # share of the steps
    final: Fraction = 0.0  # learning rate at the end / peak


class Source(Value):
    """One domain of text. `uri` is a path or URL of .txt, .jsonl or .parquet files (globs allowed),
    `hf:NAME[:CONFIG[:SPLIT]]` for a Hugging Face dataset, or `builtin:NAME` for the laptop corpus."""

    domain: Name
    uri: Annotated[str, Field(min_length=1)]
    text_field: str = "text"


class Phase(Value):
    """From `start` (a share of the run's tokens) on, domains are drawn with these weights."""

    start: Fraction
    weights: Weights

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if not self.weights:
            raise ValueError("weights is empty: name at least one domain")
        domains = [domain for domain, _ in self.weights]
        if len(set(domains)) < len(domains):
            raise ValueError(f"weights name a domain twice: {domains}")
        return self


class DataSpec(Value):
    """Text by domain, how it becomes tokens, and in which shares a run draws it.

    sources: one for each domain. phases: the first starts at 0; each weighs domains from its start on.
    tokenizer: `bytes` (vocab_size 257) or `bpe`, trained on the training text to the model's vocab_size.
    held_out: documents are drawn for evaluation by a hash of their content, so a domain of few documents
    needs a larger share.
    """

    sources: Annotated[tuple[Source, ...], Many]
    phases: Annotated[tuple[Phase, ...], Many]
    tokenizer: Literal["bytes", "bpe"] = "bytes"  # bpe is trained on the training text to vocab_size
    held_out: Annotated[float, Field(gt=0, lt=0.5)] = 0.02  # share of documents kept for evaluation

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        domains = [source.domain for source in self.sources]
        for domain in domains:
            if domains.count(domain) > 1:
                raise ValueError(f"domain {domain!r} has two sources: give each its own domain name")
        if not self.phases or self.phases[0].start != 0:
            raise ValueError("phases must begin with one that starts at 0")
        starts = [phase.start for phase in self.phases]
        if starts != sorted(set(starts)) or starts[-1] >= 1:
            raise ValueError(f"phase starts {starts} must increase and stay below 1")
        for phase in self.phases:
            for domain, _ in phase.weights:
                if domain not in domains:
                    raise ValueError(f"a phase weighs domain {domain!r}, the sources are {domains}")
        return self


class EvalSpec(Value):
    """Held-out evaluation of every domain and their plain mean, without dropped tokens and without z-loss.

    `loss_per` decides what is measured; `unit` names it and with that picks the forecast's prior on the floor
    of the loss. Say `other` for tiny models, code or maths, whose floor is not that of text at scale.
    """

    every: Annotated[float, Field(gt=0, le=1)] = 0.05  # of the run's tokens; the last step always counts
    rows: Count = 512  # rows a domain, at most what is held out
    loss_per: Literal["token", "byte"] = "token"  # nats per token, or bits per byte of text
    unit: Literal["nats/token", "bits/byte", "other"] = "nats/token"  # which prior the forecast uses

    @property
    def measured_in(self) -> str:
        """The unit in which losses are measured; `unit` may name another prior."""
        return "bits/byte" if self.loss_per == "byte" else "nats/token"


class ParallelSpec(Value):
    """How a step is laid out. It changes no number beyond rounding and is not part of the identity, unless
    a capacity lets assignments be dropped: then who is dropped depends on the devices and their tokens.

    `data` x `expert` devices share the rows of a batch; along `expert` they also share the experts and the
    storage of the other matrices. `transport` brings rows to their experts (see ladder.moe.ep.transport):
    a2a in padded pools, `waves` of them; ragged in their exact number; ring to all devices; local moves the
    experts and not the rows; dense is the slow form that the others are held to.
    """

    data: Count = 1
    expert: Count = 1
    micro_batch_rows: Count | None = None  # rows a device works on at a time; None = all of its rows
    capacity: PositiveFloat | None = None  # most rows of a device's experts / an even share; None drops none
    sender_capacity: PositiveFloat | None = None  # most rows from one device to one other / an even share
    transport: Literal["a2a", "ragged", "ring", "local", "dense"] = "a2a"
    waves: Count = 1  # parts of an a2a, one after the other: 1 / waves of its buffers are alive
    remat: Literal["none", "layer"] = "none"  # what the backward pass computes again: nothing, whole layers

    def __str__(self) -> str:
        return f"parallel.data={self.data}" + (f" x expert={self.expert}" if self.expert > 1 else "")

    @property
    def devices(self) -> int:
        return self.data * self.expert

    @property
    def drops(self) -> bool:
        return self.capacity is not None or self.sender_capacity is not None

    @model_validator(mode="after")
    def _runs(self) -> Self:
        if self.waves > 1 and self.transport != "a2a":
            raise ValueError(f"waves={self.waves} are parts of transport='a2a', not of {self.transport!r}")
        if self.sender_capacity and self.expert == 1:
            raise ValueError(
                f"sender_capacity={self.sender_capacity} limits what devices of the expert axis send to each "
                "other, and expert=1"
            )
        return self


class RunSpec(Value):
    """One training run. `steps * batch_tokens` tokens, in rows of `model.context` tokens."""

    model: ModelSpec
    optimizer: OptimizerSpec
    schedule: ScheduleSpec = ScheduleSpec()
    data: DataSpec
    evaluation: EvalSpec = EvalSpec()
    parallel: ParallelSpec = ParallelSpec()
    steps: Count
    batch_tokens: Count  # global batch
    seed: CountOrZero = 0
    count_lm_head: bool = False  # do active parameters and FLOPs on the scaling axis include the output head?

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_tokens % self.model.context:
            raise ValueError(
                f"batch_tokens={self.batch_tokens} is not a multiple of model.context={self.model.context}"
            )
        layout = self.parallel
        if self.rows % layout.devices:
            raise ValueError(f"{self.rows} rows a batch do not divide over {layout}")
        if self.model.experts % layout.expert:
            raise ValueError(
                f"model.experts={self.model.experts} do not divide over parallel.expert={layout.expert}"
            )
        micro, rows = layout.micro_batch_rows, self.rows // layout.devices
        if micro and rows % micro:
            raise ValueError(f"parallel.micro_batch_rows={micro} does not divide the {rows} rows of a device")
        if self.data.tokenizer == "bytes" and self.model.vocab_size != 257:
            raise ValueError(
                f"model.vocab_size={self.model.vocab_size}: bytes need 257 (256 and the document mark)"
            )
        if self.data.tokenizer == "bpe" and self.model.vocab_size < 258:
            raise ValueError(f"model.vocab_size={self.model.vocab_size}: bpe needs at least 258")
        if self.evaluation.loss_per == "byte" and self.evaluation.unit == "nats/token":
            raise ValueError(
                "evaluation.unit='nats/token' with loss_per='byte': say 'bits/byte', or 'other' (tiny models)"
            )
        return self

    @property
    def rows(self) -> int:
        """Rows of a global batch."""
        return self.batch_tokens // self.model.context

    @property
    def tokens(self) -> int:
        return self.steps * self.batch_tokens

    @property
    def eval_steps(self) -> tuple[int, ...]:
        """Completed updates of an evaluation: each `evaluation.every` of the steps, and the end."""
        count = math.ceil(1 / self.evaluation.every - 1e-9)
        marks = {round(self.steps * self.evaluation.every * k) for k in range(1, count)}
        return tuple(sorted((marks - {0}) | {self.steps}))

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON of what changes the numbers: everything but `parallel`. Where that
        drops assignments it counts too, but for what moves and computes the same rows another way.

        Fields at their default are left out, so that a later version with one more feature (off by
        default) keeps old fingerprints; for the same reason a default never changes.
        """
        left_out: Any = {"parallel": {"remat", "transport", "waves"} if self.parallel.drops else True}
        return digest(self.model_dump(mode="json", exclude=left_out, exclude_defaults=True))


class Hypothesis(Value):
    """What is claimed before the launch, and what hangs on it."""

    question: str
    prediction: str = ""
    decides: str = ""
    links: Annotated[tuple[str, ...], Many] = ()


class Rung(Value):
    """A size of the ladder. `seeds` replicates share everything but the seed."""

    name: Name
    run: RunSpec
    resources: Resources = Resources()
    seeds: Count = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.run.parallel.devices % self.resources.hosts:
            layout = self.run.parallel
            raise ValueError(
                f"{layout} devices do not divide over resources.hosts={self.resources.hosts}: make it a "
                "multiple"
            )
        return self

    @property
    def runs(self) -> tuple[tuple[str, RunSpec], ...]:
        """(run id, spec) of each replicate: NAME, NAME-r1, NAME-r2, ... with seeds that never meet
        those of a ladder moved by `Ladder.with_seed`."""
        return tuple(
            (self.name if k == 0 else f"{self.name}-r{k}", self.run.replace(seed=self.run.seed + 1000 * k))
            for k in range(self.seeds)
        )


class Gate(Value):
    """Each rung from the third on is predicted from the smaller ones before it starts, and has to land inside
    that prediction's band of `level` (see ladder.gating)."""

    level: float = 0.99

    @model_validator(mode="after")
    def _frozen(self) -> Self:
        if self.level not in GATE_LEVELS:
            raise ValueError(
                f"level={self.level}: a prediction keeps the bands {', '.join(map(str, GATE_LEVELS))}"
            )
        return self


class Ladder(Value):
    """Rungs, smallest first, and the target that they predict.

    gate: "auto" is `Gate()` from four rungs on, and none below; None lets all rungs run side by side.
    """

    name: Name
    rungs: Annotated[tuple[Rung, ...], Many]
    target: Rung | None = None
    gate: Gate | Literal["auto"] | None = "auto"
    hypothesis: Hypothesis | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.rungs:
            raise ValueError("rungs is empty: declare at least one rung")
        if self.target and self.target.seeds != 1:
            raise ValueError(f"target.seeds={self.target.seeds}: the target is one run")
        names = [name for rung in self.everything for name, _ in rung.runs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"run name {name!r} is used twice: give each rung its own name")
        counted = {rung.run.count_lm_head for rung in self.everything}
        measured = {(rung.run.evaluation.loss_per, rung.run.evaluation.unit) for rung in self.everything}
        if len(counted) > 1:
            raise ValueError("count_lm_head differs between the runs: one scaling axis needs one definition")
        if len(measured) > 1:
            raise ValueError(f"evaluation.loss_per and unit differ between the runs: {sorted(measured)}")
        return self

    @property
    def everything(self) -> tuple[Rung, ...]:
        """The rungs and, last, the target."""
        return (*self.rungs, *((self.target,) if self.target else ()))

    def with_seed(self, seed: int) -> Self:
        """The same ladder with every run's seed moved by `seed`."""

        def moved(rung: Rung) -> Rung:
            return rung.replace(run=rung.run.replace(seed=rung.run.seed + seed))

        return self.replace(
            rungs=tuple(moved(rung) for rung in self.rungs),
            target=moved(self.target) if self.target else None,
        )
