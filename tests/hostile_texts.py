"""Texts that try to become something else: markup, script, terminal commands, another reading direction.

One corpus for the report, the viewer and the terminal. What counts is that nothing runs, nothing is fetched, and a reader sees
that the characters are there.
"""

MARK = "rollforgewashere"
"""Every payload that runs sets the page's title, or a global, to this."""

TEXTS = [
    f"<script>document.title='{MARK}';window.{MARK}=1</script>",
    f"<img src=x onerror=\"document.title='{MARK}';window.{MARK}=1\">",
    f"<svg onload=window.{MARK}=1><animate onbegin=window.{MARK}=1 attributeName=x dur=1s></svg>",
    f"</style><script>window.{MARK}=1</script>",
    f"</title><script>window.{MARK}=1</script>",
    f"]]><!-- --><script>window.{MARK}=1</script>",
    f"<!-- <script>window.{MARK}=1</script>",
    f'<a href="javascript:window.{MARK}=1">click</a> javascript:window.{MARK}=1',
    f"data:text/html,<script>window.{MARK}=1</script>",
    f"\\href{{javascript:window.{MARK}=1}}{{x}} $\\unicode{{<img src=x onerror=window.{MARK}=1>}}$",
    "![image](http://127.0.0.1:9/pixel.png) <img src=http://127.0.0.1:9/pixel.png>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><style>@import url(http://127.0.0.1:9/y.css)</style>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'><base href=http://127.0.0.1:9/>",
    "<form action=http://127.0.0.1:9/><button>send</button></form><iframe src=http://127.0.0.1:9/></iframe>",
    "right\u202eto left\u202c and \u2066isolated\u2069 and zero\u200bwidth\u200d\ufeff",
    "nul \x00 bell \x07 escape \x1b[2J\x1b]8;;http://127.0.0.1:9/\x07link\x1b]8;;\x07 del \x7f c1 \x9b31m",
    "half a pair: \ud800 and \udc00",
    "{{7*7}} ${7*7} #{7*7} <%= 7*7 %> &lt;script&gt; &amp; &#60;",
    "a" * 100_000,
    "\n".join(f"line {number}" for number in range(5_000)),
    "[" * 10_000 + "]" * 10_000,
    "'; DROP TABLE rollouts; -- \" OR 1=1",
]

NAMES = [text for text in TEXTS if len(text) < 300 and "\x00" not in text and "\ud800" not in text]
"""Those that can be a column's, a model's or an agent's name."""
