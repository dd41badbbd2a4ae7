"""InputCheck: what a run would read, by its own readers and its own encoder, without its models."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from actors.engines.unloaded import UnloadedEngine
from jobs.driver.plan import Plan
from jobs.work.estimate import NUM_PLACES, evenly
from pipeline.errors import ErrorRow
from pipeline.inputs.carried import id_type
from pipeline.inputs.records import line_numbers
from pipeline.inputs.rows import InputRow, read_unit, result_or_error
from pipeline.inputs.units import WorkUnit
from pipeline.storage.location import Location

MOST_ROWS, _MOST_BYTES = 10_000, 32 << 20  # that are all read; of a larger input a sample is
_NUM_LONGEST = 3


class Place(NamedTuple):
    """The place of a row: its file, and its number there, from 0."""

    file: str
    row_number: int


@dataclass(kw_only=True)
class InputCheck:
    """What was found in the rows of the input that were read."""

    engine: UnloadedEngine
    is_whole: bool  # whether they are all rows that a run would do
    num_rows: int = 0
    num_tokens: int = 0  # of the prompts that an engine would take
    errors: list[ErrorRow] = field(default_factory=list)
    longest: list[tuple[int, Place]] = field(default_factory=list)  # tokens of the longest prompts
    num_cut: int = 0  # rows whose prompt leaves less of the context than the row may write
    num_begun_twice: int = 0  # prompts with two begin tokens
    num_marked: int = 0  # prompts that are sent as texts, since they bear marks of the chat template
    first: tuple[Place, str] | None = None  # the first prompt as the model reads it, special tokens visible
    places_of_ids: dict[str | int, list[Place]] = field(default_factory=dict)

    @property
    def repeated_ids(self) -> dict[str | int, list[Place]]:
        """The ids of several rows, and where these are."""
        return {each: places for each, places in self.places_of_ids.items() if len(places) > 1}

    def read(self, plan: Plan, units: Iterable[WorkUnit], most: int) -> None:
        """Read at most `most` rows of each unit. Raises ValueError for a file that has changed or cannot be read."""
        prompt_of, run = plan.task.prompts(self.engine), plan.run_directory
        ids = id_type(plan.files, plan.input_options) if run is None else run.id_type
        for unit in units:
            for row in islice(read_unit(unit, plan.input_options, plan.carried, ids), most):
                self.num_rows += 1
                place = Place(unit.file, row.row_number)
                user_id = row.user_id if isinstance(row, InputRow) else row.id
                if user_id is not None:
                    self.places_of_ids.setdefault(user_id, []).append(place)
                if isinstance(row, InputRow):
                    ordinal = unit.first_ordinal + unit.row_index(row.row_id)
                    prompt = result_or_error("encode", row, unit.file, prompt_of, row, ordinal)
                else:
                    prompt = row
                if isinstance(prompt, ErrorRow):
                    self.errors.append(prompt)
                elif isinstance(row, InputRow) and prompt[0]:
                    self._add(place, *prompt)
                    self.num_marked += row.messages is None and bool(plan.input_options.text_marks)

    def _add(self, place: Place, token_ids: list[int], max_tokens: int) -> None:
        codec = self.engine.codec
        if self.first is None:
            self.first = place, codec.of_all_tokens.decode(token_ids)
        self.num_tokens += len(token_ids)
        self.longest = heapq.nlargest(
            _NUM_LONGEST, [*self.longest, (len(token_ids), place)], key=lambda found: found[0]
        )
        self.num_cut += len(token_ids) + max_tokens > self.engine.limits.max_model_len
        self.num_begun_twice += token_ids[:2] == 2 * [codec.tokenizer.bos_token_id]


def check_input(plan: Plan, units: Sequence[WorkUnit], num_rows: int, num_bytes: int) -> InputCheck:
    """Return what `num_rows` rows with `num_bytes` are like. Raises as `InputCheck.read` does.

    `units` are theirs: all, or as many as `MOST_ROWS`, spread evenly. Where they are too many, some rows are read of
    some units.
    """
    is_whole = num_rows <= MOST_ROWS and num_bytes <= _MOST_BYTES
    check, most = InputCheck(engine=UnloadedEngine.of(plan.settings), is_whole=is_whole), num_rows
    if not is_whole:
        units = evenly(units, NUM_PLACES)
        most = max(1, min(MOST_ROWS, num_rows * _MOST_BYTES // max(1, num_bytes)) // len(units))
    check.read(plan, units, most)
    return check


def shown_places(plan: Plan, places: Iterable[Place]) -> Mapping[Place, str]:
    """Return the places as people look them up: the file with the line, or with the number of a row of Parquet."""
    rows: dict[str, set[int]] = {}
    for place in places:
        rows.setdefault(place.file, set()).add(place.row_number)
    shown, names = {}, Counter(Location.parse(file.path).short_name for file in plan.files)
    for file, numbers in rows.items():
        location = Location.parse(file)
        name = location.short_name if names[location.short_name] == 1 else file
        lines = line_numbers(location, plan.input_options, numbers)
        for number in numbers:
            shown[Place(file, number)] = f"{name}:{lines[number]}" if lines else f"{name}, row {number}"
    return shown
