"""Rewards an answer whose last number is the expected one; the other numbers say how much of a gain is brevity.

`reward` takes the last number, as most scripts do. `mentions` asks only that the right number is somewhere in the answer: a longer
answer has more chances there. A model that learns to stop in time gains in `reward` and not in `mentions`; one that learns to
calculate gains in both.
"""

import re

needs = ("expected_answer",)


def verify(task, response):
    text = re.sub(r"(?<=\d),(?=\d)", "", response.text).replace("−", "-")
    # The minus of a subtraction ("9 - 4") is no sign.
    numbers = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", re.sub(r"(?<=\d) ?- ?(?=\d)", " minus ", text))
    # An answer that repeats the question ("3 + 4 = 7") has not answered with its numbers.
    question = re.findall(r"\d+", task.prompt)
    said = numbers[2:] if numbers[:2] == question else numbers
    expected = str(task["expected_answer"])
    return {
        "reward": float(bool(said) and said[-1] == expected),
        "mentions": float(expected in said),
        "words": len(response.text.split()),
    }
