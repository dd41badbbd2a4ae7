"""Synthetic text of five kinds, written by rules: what the bundled pair is trained on and prompted with.

Everything here is a pure function of a `random.Random`. The words are chosen at random, so the text has real entropy;
the forms are few and what is said once (a name, a place, a number) holds to the end, so that a tiny model can learn it.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words("""
    Ada Ben Cora Dan Elif Finn Greta Hugo Ines Jonas Kira Liam Mara Nils Olga Pavel Quinn Rosa Sami Tara Uma Viktor
    Wanda Xenia Yusuf Zoë Anton Bella Carlos Dina Emil Fatima Gustav Hana Igor Julia Karim Lena Marco Nadia Omar Petra
    Rafael Sofia Tomas Ursula Vera Walter Yara Zeno Alma Boris Clara David Esther Felix Gina Henrik Irma Jakob Katja
    Lorenz Mina Norbert Oskar Paula Ruben Selma Theo Ulla Vito Wilma Xaver Yvonne Zora Arne Berta Cyrus Dora Edgar Frida
    Georg Helga Ivan Jasmin Kurt Luisa Magnus Nora Otto Pia Rudolf Sandra Tilda Umberto Valerie Wim Yannick Aisha Bruno
    Celia Dario Erika Fabian
""")
SHE = frozenset(
    _words("""
    Ada Cora Elif Greta Ines Kira Mara Olga Rosa Tara Uma Wanda Xenia Zoë Bella Dina Fatima Hana Julia Lena Nadia Petra
    Sofia Ursula Vera Yara Alma Clara Esther Gina Irma Katja Mina Paula Selma Ulla Wilma Yvonne Zora Berta Dora Frida
    Helga Jasmin Luisa Nora Pia Sandra Tilda Valerie Aisha Celia Erika
""")
)
SURNAME_STARTS = _words("""
    Ash Black Brad Cal Clear Dun East Fair Gold Hart Haw King Lang Long Mill North Oak Red Stone Thorn West Wind
""")
SURNAME_ENDS = _words("well ford ley man field brook wood ton by ridge more stead worth")
SURNAMES = [start + end for start in SURNAME_STARTS for end in SURNAME_ENDS]
CITIES = _words("""
    Oslo Lima Cairo Kyoto Porto Quito Riga Turin Vienna Zagreb Dublin Geneva Havana Lagos Madrid Nairobi Prague Seville
    Tunis Utrecht Warsaw York Bergen Malmö Delhi Hanoi Athens Berlin Boston Cologne Dakar Florence Glasgow Hamburg
    Istanbul Jakarta Krakow Lyon Milan Naples Osaka Paris Rome Sydney Tallinn Valencia
""")
PLACES = _words("""
    forest village harbour mountain river market castle garden island library desert lighthouse bakery mill bridge
    school station meadow valley cave workshop museum tower orchard palace tunnel theatre quarry farm square pond
    cottage
""")
ANIMALS = _words("""
    fox owl bear rabbit goose horse cat dog mouse hedgehog turtle crow wolf donkey otter badger swan goat lamb frog bee
    beaver camel deer duck falcon heron lizard magpie moth parrot pigeon raven seal snail squirrel stork toad
""")
THINGS = _words("""
    lamp key map bell rope boat kettle violin clock letter lantern mirror ring blanket basket drum kite book coin
    compass hammer ladder bucket candle flute wheel umbrella ribbon anchor arrow barrel brush button cart chair coat cup
    fan feather glove helmet hook jar lock medal needle pencil pillow plate saddle scarf shovel spoon stool table
    trumpet wagon whistle
""")
FOODS = _words("""
    apples bread carrots cheese eggs flour honey lemons milk mushrooms noodles olives onions oranges pears peas pepper
    plums potatoes rice salt soup sugar tea tomatoes walnuts yoghurt butter beans cherries almonds barley biscuits
    cabbage celery cream dates figs garlic grapes ham jam leeks lentils mustard nuts oats parsley pumpkin raisins
    spinach turnips vinegar
""")
ADJECTIVES = _words("""
    old small red bright quiet heavy golden broken strange blue wooden warm empty silver long green clever brave gentle
    hungry lazy lonely proud shy tired cheerful careful curious ancient bitter broad calm cold crooked dark dusty famous
    foolish fresh friendly grey grumpy huge kind little loud lovely modest narrow noble pale patient plain polite quick
    rough secret sharp simple sleepy smooth soft solid tall tiny wise yellow young
""")
FIELDS = _words("""
    price weight score speed amount level count length depth width power volume height distance total budget
""")
COUNTED = {
    **{name: f"{name}s" for name in _words("apple book coin card stone shell pencil ticket bottle flower")},
    "box": "boxes",
    "brush": "brushes",
}
MONTHS = _words("January February March April May June July August September October November December")

OPENINGS = (
    "Once upon a time there was {a_adj} {animal} called {name}. {they} lived near the {place} in {city}.",
    "{name} was {a_adj} child who lived beside the {place}. Every morning {they_l} talked to the {animal}.",
    "In a {place} far from {city} lived {name} and {their} friend {friend}.",
    "One evening in {month}, {name} walked alone to the {place}.",
    "Long ago, when the {place} was still new, {name} came there from {city} with {a_adj2} {thing}.",
    "Nobody in {city} knew why {name} always carried {a_adj2} {thing}.",
)
TROUBLES = (
    "But one day the {thing} was gone, and nobody knew where it was.",
    "Then a storm came over the {place}, and the {thing} fell into the water.",
    "That night {they_l} heard a strange sound behind the {place}.",
    "{friend} had lost {a_adj2} {thing} and began to cry.",
    "One morning the {animal} did not come home.",
    "It was so cold that even the {animal} stayed inside.",
)
EVENTS = (
    "{name} asked {friend}, but {friend} only shook {friend_their} head.",
    '"We must look for the {thing}," said {name}. "Come with me!"',
    '"Do not be afraid," said {friend}. "I know the way to the {place}."',
    "They walked for {number} days and ate {food} and {food2}.",
    "On the road they met {a_adj3} {animal} who was looking for {food}.",
    "The {animal} gave them {a_adj3} {thing2} and ran away.",
    "{friend} climbed up and saw a light far away.",
    "{name} sat down under a tree and thought about {city}.",
    "They knocked at the door {number} times, but it stayed closed.",
    "Behind the {place} they found {number} {adj3} stones and a {thing2}.",
)
ENDINGS = (
    "At last {name} found the {thing}, and everyone was happy. The end.",
    "So {name} and {friend} went home, and the {animal} slept by the fire. The end.",
    "From that day on {name} was never lonely again.",
    "And if they have not left the {place}, they are still there today.",
    '"Now I know," said {name}, "that a friend is worth more than any {thing}."',
    "That evening they all ate {food} together and laughed until it was dark.",
)


@dataclass(frozen=True)
class Piece:
    """One text of one kind, and a user's request that it would answer."""

    kind: str
    request: str
    text: str


def _with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def story(rng: random.Random) -> Piece:
    """Return a story of 5 to 8 sentences; its people, animal, place and things stay the same to the end."""
    name, friend = rng.sample(NAMES, 2)
    place, animal = rng.choice(PLACES), rng.choice(ANIMALS)
    thing, thing2 = rng.sample(THINGS, 2)
    food, food2 = rng.sample(FOODS, 2)
    adj, adj2, adj3 = rng.sample(ADJECTIVES, 3)
    words = {
        "name": name,
        "they": "She" if name in SHE else "He",
        "they_l": "she" if name in SHE else "he",
        "their": "her" if name in SHE else "his",
        "friend": friend,
        "friend_their": "her" if friend in SHE else "his",
        "place": place,
        "animal": animal,
        "thing": thing,
        "thing2": thing2,
        "food": food,
        "food2": food2,
        "city": rng.choice(CITIES),
        "month": rng.choice(MONTHS),
        "number": rng.choice(("two", "three", "four", "five", "seven", "ten")),
        "adj3": adj3,
        "a_adj": _with_article(adj),
        "a_adj2": _with_article(adj2),
        "a_adj3": _with_article(adj3),
    }
    sentences = [
        rng.choice(OPENINGS),
        rng.choice(TROUBLES),
        *rng.sample(EVENTS, rng.randint(2, 5)),
        rng.choice(ENDINGS),
    ]
    body = " ".join(sentence.format_map(words) for sentence in sentences)
    title = rng.choice((f"{name} and the {thing}", f"The {animal} of the {place}", f"The {adj2} {thing}"))
    request = rng.choice(
        (
            f"Tell me a story about {name} and {_with_article(animal)}.",
            f'Please write a short story with the title "{title}".',
            f"I would like a story about {name} and {friend} at the {place}.",
            f"Write a bedtime story in which {name} looks for {_with_article(thing)}.",
        )
    )
    return Piece("story", request, f"{title}\n\n{body}" if rng.random() < 0.7 else body)


def _sum(rng: random.Random) -> tuple[str, str]:
    """Return a question and its worked answer."""
    name, things = rng.choice(NAMES), rng.choice(list(COUNTED.values()))
    a, b = rng.randint(12, 99), rng.randint(12, 99)
    tens, units = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    small, large = min(a, b), max(a, b)
    digit = rng.randint(2, 9)
    plus = (
        f"{a} + {b}: first the tens, {a // 10 * 10} + {b // 10 * 10} = {tens}, "
        f"then the units, {a % 10} + {b % 10} = {units}, and together {tens} + {units} = {a + b}."
    )
    minus = (
        f"{large} - {small}: first {large} - {small // 10 * 10} = {large - small // 10 * 10}, "
        f"then {large - small // 10 * 10} - {small % 10} = {large - small}."
    )
    times = (
        f"{digit} x {a}: {digit} x {a // 10 * 10} = {digit * (a // 10 * 10)}, "
        f"{digit} x {a % 10} = {digit * (a % 10)}, "
        f"and {digit * (a // 10 * 10)} + {digit * (a % 10)} = {digit * a}."
    )
    return rng.choice(
        (
            (f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", plus),
            (f"There are {large} {things} on the table. {name} takes {small} of them. How many are left?", minus),
            (f"{name} buys {digit} bags with {a} {things} each. How many {things} are there in all?", times),
            (f"What is {a} + {b}?", plus),
            (f"What is {large} - {small}?", minus),
            (f"What is {digit} x {a}?", times),
        )
    )


def arithmetic(rng: random.Random) -> Piece:
    """Return one to three worked sums; a request asks for one of them only."""
    sums = [_sum(rng) for _ in range(rng.randint(1, 3))]
    if len(sums) == 1:
        question, working = sums[0]
        return Piece("arithmetic", question, f"{working} Answer: {working.rsplit(' ', 1)[1]}")
    lines = [f"Question {i}: {question}\nWorking: {working}\n" for i, (question, working) in enumerate(sums, 1)]
    number = "two" if len(sums) == 2 else "three"
    return Piece("arithmetic", f"Give me {number} worked sums, please.", "\n".join(lines).rstrip("\n"))


def _person(rng: random.Random) -> dict[str, object]:
    name, surname = rng.choice(NAMES), rng.choice(SURNAMES)
    return {
        "id": rng.randint(100, 9999),
        "name": f"{name} {surname}",
        "age": rng.randint(18, 79),
        "city": rng.choice(CITIES),
        "email": f"{name.lower()}.{surname.lower()}@example.{rng.choice(('com', 'org'))}",
        "active": rng.random() < 0.6,
        "likes": rng.sample(FOODS, rng.randint(1, 3)),
    }


def _order(rng: random.Random) -> dict[str, object]:
    lines = [
        {"item": rng.choice(THINGS), "quantity": rng.randint(1, 9), "price": round(rng.uniform(1, 60), 2)}
        for _ in range(rng.randint(1, 3))
    ]
    return {
        "order": f"{rng.choice('ABCDEFGH')}-{rng.randint(1000, 9999)}",
        "customer": rng.choice(NAMES),
        "lines": lines,
        "ship_to": rng.choice(CITIES),
        "status": rng.choice(("new", "paid", "packed", "sent", "returned")),
    }


def _reading(rng: random.Random) -> dict[str, object]:
    return {
        "sensor": f"{rng.choice(PLACES)}-{rng.randint(1, 30)}",
        "date": _date(rng),
        "unit": rng.choice(FIELDS),
        "values": [rng.randint(0, 99) for _ in range(rng.randint(2, 6))],
        "alarm": rng.choice((None, "low", "high")),
    }


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def json_record(rng: random.Random) -> Piece:
    """Return one JSON object, or a list of two people, indented or on one line; it always parses."""
    noun, make = rng.choice((("a person", _person), ("an order", _order), ("a sensor reading", _reading)))
    indent = rng.choice((None, 2))
    pair = make is _person and indent is None and rng.random() < 0.4
    record = [make(rng), make(rng)] if pair else make(rng)
    request = rng.choice(
        (
            f"Give me {'a list of two records' if pair else 'a record'} of {noun} in JSON.",
            f"I need {'two examples' if pair else 'an example'} of {noun} as JSON, "
            f"{'indented' if indent else 'compact'}.",
            f"Write {'two JSON records' if pair else 'a JSON object'} for {noun}.",
        )
    )
    return Piece("json", request, json.dumps(record, indent=indent, ensure_ascii=False))


def _loop(rng: random.Random) -> str:
    (one, many), field = rng.choice(list(COUNTED.items())), rng.choice(FIELDS)
    verb, start, step = rng.choice(
        (
            ("total", "0", f"result += {one}.{field}"),
            ("largest", "0", f"result = max(result, {one}.{field})"),
            ("every", "[]", f"result.append({one}.{field})"),
        )
    )
    test = rng.choice(("", f"        if {one}.{field} < {rng.randint(1, 99)}:\n            continue\n"))
    return (
        f"def {verb}_{field}({many}):\n"
        f'    """Returns the {verb} {field} of the {many}."""\n'
        f"    result = {start}\n    for {one} in {many}:\n{test}        {step}\n    return result\n"
    )


def _class(rng: random.Random) -> str:
    thing, fields = rng.choice(THINGS).capitalize(), rng.sample(FIELDS, rng.randint(2, 3))
    changed, method = fields[0], rng.choice(("add", "set", "scale"))
    change = {
        "add": f"self.{changed} += value",
        "set": f"self.{changed} = value",
        "scale": f"self.{changed} *= value",
    }
    return (
        f"class {thing}:\n    def __init__(self, {', '.join(fields)}):\n"
        + "".join(f"        self.{field} = {field}\n" for field in fields)
        + f"\n    def {method}_{changed}(self, value):\n"
        + f"        {change[method]}\n        return self.{changed}\n"
    )


def _check(rng: random.Random) -> str:
    field, thing = rng.choice(FIELDS), rng.choice(THINGS)
    limit = rng.randint(2, 500)
    error = rng.choice(("ValueError", "RuntimeError"))
    return (
        f"def check_{field}({thing}, limit={limit}):\n"
        f"    if {thing}.{field} > limit:\n"
        f'        raise {error}(f"the {field} of the {thing} is '
        f'{{{thing}.{field}}} and the limit is {{limit}}")\n'
        f"    return {thing}\n"
    )


def code(rng: random.Random) -> Piece:
    """Return a Python function or class, or two of them."""
    makers = rng.choices((_loop, _class, _check), k=rng.choice((1, 1, 2)))
    text = "\n\n".join(make(rng) for make in makers).rstrip("\n")
    what = text.split("(")[0].split(":")[0].split()
    noun = "class" if what[0] == "class" else "function"
    request = rng.choice(
        (
            f"Write a Python {noun} called {what[1]}.",
            f"Show me the code of {_with_article(noun)} named {what[1]}.",
            f"Can you implement {what[1]} in Python?",
        )
    )
    return Piece("code", request, text)


def _shopping(rng: random.Random) -> tuple[str, list[str]]:
    units = ("kilos of", "bags of", "boxes of", "jars of", "packets of")
    foods = rng.sample(FOODS, rng.randint(4, 9))
    return "Shopping list for", [f"{rng.randint(2, 9)} {rng.choice(units)} {food}" for food in foods]


def _packing(rng: random.Random) -> tuple[str, list[str]]:
    things = rng.sample(THINGS, rng.randint(4, 9))
    return "Packing list for", [f"the {rng.choice(ADJECTIVES)} {thing}" for thing in things]


def _tasks(rng: random.Random) -> tuple[str, list[str]]:
    tasks = (
        lambda: f"repair the {rng.choice(THINGS)}",
        lambda: f"write a letter to {rng.choice(NAMES)}",
        lambda: f"buy {rng.choice(FOODS)} and {rng.choice(FOODS)}",
        lambda: f"clean the {rng.choice(PLACES)}",
        lambda: f"feed the {rng.choice(ANIMALS)}",
        lambda: f"call {rng.choice(NAMES)} {rng.choice(SURNAMES)} in {rng.choice(CITIES)}",
    )
    hours = sorted(rng.sample(range(7, 22), rng.randint(4, 8)))
    return "Plan of the day for", [
        f"{hour:02}:{rng.choice((0, 15, 30, 45)):02} {rng.choice(tasks)()}" for hour in hours
    ]


def item_list(rng: random.Random) -> Piece:
    """Return a heading and 4 to 9 items, with dashes or numbers."""
    heading, items = rng.choice((_shopping, _packing, _tasks))(rng)
    name, month, day = rng.choice(NAMES), rng.choice(MONTHS), rng.randint(1, 28)
    numbered = rng.random() < 0.5
    lines = [f"{i}. {item}" if numbered else f"- {item}" for i, item in enumerate(items, 1)]
    what = heading.removesuffix(" for").lower()
    request = rng.choice(
        (
            f"Make a {what} for {name}, {day} {month}.",
            f"Write a {'numbered ' if numbered else ''}{what} for {name} on {day} {month}.",
            f"{name} needs a {what} with {len(items)} lines for {day} {month}.",
        )
    )
    return Piece("list", request, f"{heading} {name}, {day} {month}\n\n" + "\n".join(lines))


KINDS: dict[str, Callable[[random.Random], Piece]] = {
    "story": story,
    "arithmetic": arithmetic,
    "json": json_record,
    "code": code,
    "list": item_list,
}
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You are a friendly writer. Answer with the text only.",
    "Answer the user and add nothing else.",
    "You help with short texts: stories, sums, records, code and lists.",
)


def chat_messages(piece: Piece, rng: random.Random) -> list[dict[str, str]]:
    """Return the user's request for the piece, after a system message in half of the cases."""
    user = {"role": "user", "content": piece.request}
    if rng.random() < 0.5:
        return [{"role": "system", "content": rng.choice(SYSTEM_MESSAGES)}, user]
    return [user]
