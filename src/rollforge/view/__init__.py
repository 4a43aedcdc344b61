"""The viewer: a local web page over a run's index, suspicious rollouts first.

The server answers from the index and reads text only for what is on the screen. Model output is hostile: it reaches the
page as text, never as markup, and no request names a path.
"""

from rollforge.view.viewer_server import ViewOptions, make_app, serve

__all__ = ["ViewOptions", "make_app", "serve"]
