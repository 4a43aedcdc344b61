"""A user's verifier, as people write them."""


def verify(task, response):
    return f"{{{task['expected_answer']}}}" in response.text
