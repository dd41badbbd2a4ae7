"""What a JSON text will probably say next follows from its grammar and from its own white space."""

from transformers import AutoTokenizer

from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan

TOKENIZER = AutoTokenizer.from_pretrained("examples/tiny_pair/target")
TABLE = TokenTable.of_tokenizer(TOKENIZER, len(TOKENIZER), frozenset({TOKENIZER.eos_token_id}))
GRAMMARS = Grammars(lambda: TABLE)
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("name", "city", "email")},
    "required": ["name", "city", "email"],
    "additionalProperties": False,
}


def _foreseen(*texts: str) -> list[str]:
    """What is drafted behind each of these beginnings of one text, one after the other."""
    matcher = GRAMMARS.matcher(Structured(json_schema=SCHEMA))
    tokens = [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    return [TOKENIZER.decode(matcher.foreseen(each)) for each in tokens]


def test_at_first_a_blank_is_expected_behind_colons_and_commas():
    assert _foreseen('{"name": "Ada",') == [' "city": "']


def test_the_white_space_that_a_text_began_with_goes_on():
    assert _foreseen('{\n  "name": "Ada",\n  "city": "Rom",') == ['\n  "email": "']
    assert _foreseen('{"name":"Ada","city":"Rom",') == ['"email":"']


def test_inside_a_text_that_is_free_nothing_is_expected():
    assert _foreseen('{"name": "Ada, {') == [""]


def test_brackets_and_quotes_in_a_text_do_not_count():
    assert _foreseen('{"name": "A\\": {, ",') == [' "city": "']


def test_a_text_that_goes_other_ways_is_not_guessed_any_more():
    beginnings = ['{"name"', '{"name"   ', '{"name"   :  ', '{"name"   :  "a"   ', '{"name"   :  "a"   ,   ']
    beginnings += ['{"name"   :  "a"   ,   "city" ', '{"name"   :  "a"   ,   "city"      :     ']
    assert _foreseen(*beginnings)[-1] == ""


def test_what_is_foreseen_is_drafted_only_as_far_as_it_pays():
    plan = DraftPlan((0,) * 16, (False,) * 16)
    dear = AdaptiveSchedule(CostTable(((1, 1.0), (16, 16.0)), (), 0.01, 1.0), 8)
    cheap = AdaptiveSchedule(CostTable(((1, 1.0), (160, 1.1)), (), 1.0, 1e-6), 8)
    few = [4] + [0] * 15
    assert dear.most_foreseen(plan, few) == 0  # all rows would pay for the positions of one
    assert cheap.most_foreseen(plan, few) == 4
    assert cheap.most_foreseen(plan, [20] * 16) == 8
