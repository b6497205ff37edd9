"""Rollouts as one Parquet file, a row for each turn: for DuckDB, pandas, Hugging Face `datasets`.

`arrow_schema` is the schema, version 1; docs/parquet.md tells it to users. Rows are written in groups of a bounded
size, so that memory does not grow with the number of turns.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.check.plain import is_plain
from turnkeep.errors import ArchiveError, ConfigurationError, CorruptRecord, MalformedItem, TurnkeepError
from turnkeep.export.samples import exact_scores, fitting_ids
from turnkeep.export.staging import staged_folder
from turnkeep.history.turn import Turn
from turnkeep.rollout.origin import find_reward
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.wire.json import dumps
from turnkeep.wire.training import REQUIRED, ROUTES

if TYPE_CHECKING:
    from turnkeep.check.facts import Sample

FORMAT = "turnkeep-turns"
VERSION = 1
FILE = "turns.parquet"

_GROUP = 4 << 20
"""Bytes of arrays and texts after which a group of rows is written; the writer needs a multiple of it."""
_GROUP_ROWS = 4096
_REPETITIVE = ["rollout", "scope", "finish_reason", "model_name", "routed_experts_dtype"]
"""Columns of few values, which a dictionary makes small; of arrays it would only hold another copy."""


class Written(NamedTuple):
    """What became of one rollout: the rows that its turns are, or why there are none."""

    rollout: str
    turns: int = 0
    error: TurnkeepError | None = None


def export_parquet(store: Store, rollouts: Iterable[str], target: Path) -> Iterator[Written]:
    """Write a row for each turn into `turns.parquet` in the new folder `target`; yields what became of each rollout.

    The folder is there when the last was taken. A rollout with something that no column can hold is left out whole,
    with the reason. Raises ConfigurationError where `target` is there already or pyarrow is missing.
    """
    schema = arrow_schema()
    import pyarrow as pa
    from pyarrow import parquet

    options = {"compression": "zstd", "use_dictionary": _REPETITIVE}
    with staged_folder(target) as staging, parquet.ParquetWriter(staging / FILE, schema, **options) as writer:
        waiting: list[dict[str, Any]] = []
        size = 0
        for rollout in rollouts:
            try:
                view = RolloutView(store, rollout)
                shared = read_shared(view)
                for number in range(view.turn_count):  # what no column can hold shows before anything is written
                    read_row(view, number, shared)
            except (ArchiveError, CorruptRecord, MalformedItem) as error:
                yield Written(rollout, error=error)
                continue
            for number in range(view.turn_count):
                waiting.append(read_row(view, number, shared))
                size += _size(waiting[-1])
                if size >= _GROUP or len(waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_pylist(waiting, schema))
                    waiting, size = [], 0
            yield Written(rollout, view.turn_count)
        if waiting:
            writer.write_table(pa.Table.from_pylist(waiting, schema))


def arrow_schema() -> Any:
    """The columns, and in the metadata the format and its version. Raises ConfigurationError where pyarrow is missing.

    Nothing is narrowed: token ids are int64, log probs float64, and the bytes of routed experts are those of the
    array [tokens, layers, top_k] in the dtype that stands beside them, little-endian, C-contiguous.
    """
    try:
        import pyarrow as pa
    except ImportError:
        message = "Parquet export needs pyarrow: pip install 'turnkeep[parquet]'"
        raise ConfigurationError(message) from None
    text, long = pa.string(), pa.large_string()
    call = pa.struct([("id", text), ("name", text), ("arguments", long)])
    gap = pa.struct([("code", text), ("invocation", text), ("detail", text)])
    columns = [
        pa.field("rollout", text, nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("call", pa.int32()),
        pa.field("scope", text),
        pa.field("finish_reason", text, nullable=False),
        pa.field("text", long, nullable=False),
        pa.field("reasoning", long),
        pa.field("tool_calls", pa.list_(call), nullable=False),
        pa.field("model_name", text),
        pa.field("response_id", text),
        pa.field("usage", long),
        pa.field("training_item", pa.int32()),
        pa.field("prompt_token_ids", pa.large_list(pa.int64())),
        pa.field("generation_token_ids", pa.large_list(pa.int64())),
        pa.field("generation_log_probs", pa.large_list(pa.float64())),
        pa.field("routed_experts", pa.large_binary()),
        pa.field("routed_experts_dtype", text),
        pa.field("routed_experts_shape", pa.list_(pa.int64())),
        pa.field("digest", text, nullable=False),
        pa.field("gaps", pa.list_(gap), nullable=False),
        pa.field("gradable", pa.bool_(), nullable=False),
        pa.field("reward", pa.float64()),
    ]
    return pa.schema(columns, metadata={"format": FORMAT, "version": str(VERSION)})


def read_shared(view: RolloutView) -> dict[str, Any]:
    """What all rows of a rollout have. Raises ArchiveError for a reward that no column can hold, CorruptRecord."""
    reward = find_reward(view.origin)
    if reward is not None and not _is_float64(reward):
        raise _no_column("a reward that is no float64", view, None, "reward")
    return {"gaps": [gap._asdict() for gap in view.gaps], "gradable": view.gradable, "reward": reward}


def _is_float64(number: int | float) -> bool:
    try:
        return float(number) == number
    except OverflowError:
        return False


def read_row(view: RolloutView, number: int, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a turn. Raises ArchiveError and MalformedItem, which say where, for what no column can hold."""
    turn = view.turn(number)
    usage = turn.usage
    row = {
        "rollout": view.id,
        "turn": number,
        "call": view.call_of_turn(number),
        "scope": turn.scope,
        "finish_reason": turn.finish_reason,
        "text": turn.content,
        "reasoning": turn.reasoning,
        "tool_calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.tool_calls],
        "model_name": turn.model_name,
        "response_id": turn.response_id,
        "usage": None if usage is None else dumps(usage).decode(),
        **_training(view, number, turn),
        "digest": turn.digest,
        **shared,
    }
    for field, value in row.items():
        if not is_plain(value):
            raise _no_column("half of a surrogate pair, which is no UTF-8", view, number, field)
        if field in ("model_name", "response_id") and not isinstance(value, str | None):
            raise _no_column("what is no text", view, number, field)
    return row


def _no_column(what: str, view: RolloutView, turn: int | None, field: str) -> ArchiveError:
    return ArchiveError(f"no column can hold {what}", rollout=view.id, turn=turn, field=field)


def _training(view: RolloutView, number: int, turn: Turn) -> dict[str, Any]:
    """The training fields of the item that has them; all null where none has."""
    from turnkeep.check.facts import read_samples

    samples = read_samples(number, turn)
    trainable = [sample for sample in samples if sample.is_trainable] or list(samples[-1:])
    for sample in samples:
        if sample.fault is not None:
            sample.fault.rollout, sample.fault.turn = view.id, number
            raise sample.fault
    if len(trainable) > 1:
        raise _no_column(f"the token ids of {len(trainable)} items of one turn", view, number, REQUIRED[1])
    if not trainable:
        return {}
    (sample,) = trainable
    assert sample.prompt is not None
    assert sample.generation is not None
    assert sample.log_probs is not None
    return {
        "training_item": sample.item,
        REQUIRED[0]: fitting_ids(view, sample, REQUIRED[0], sample.prompt),
        REQUIRED[1]: fitting_ids(view, sample, REQUIRED[1], sample.generation),
        REQUIRED[2]: exact_scores(view, sample, sample.log_probs),
        **_routes(view, sample),
    }


def _routes(view: RolloutView, sample: "Sample") -> dict[str, Any]:
    """The routed experts as bytes, with dtype and shape; an envelope is read. Raises MalformedItem."""
    if sample.routes is None:
        return {}
    experts = sample.routes.experts
    if experts is None:
        why = f"the routed experts cannot be read: {sample.routes.fault}"
        raise MalformedItem(why, rollout=view.id, turn=sample.turn, item=sample.item, field=ROUTES)
    little = experts.astype(experts.dtype.newbyteorder("<"), copy=False)
    return {ROUTES: little.tobytes(), f"{ROUTES}_dtype": little.dtype.name, f"{ROUTES}_shape": list(little.shape)}


def _size(row: dict[str, Any]) -> int:
    """About how many bytes a row holds."""
    values = [*row.values(), *(call["arguments"] for call in row["tool_calls"])]
    return sum(value.nbytes if hasattr(value, "nbytes") else len(value) for value in values if _has_size(value))


def _has_size(value: Any) -> bool:
    return hasattr(value, "nbytes") or isinstance(value, (str, bytes))
