"""The viewer: a local web page over a run's index, suspicious rollouts first.

The server answers from the index and reads text only for visible rollouts. Model output is hostile: it is sent to the page as
text, never as markup, and requests cannot name paths.
"""

from rollforge.view.viewer_server import ViewOptions, make_app, serve

__all__ = ["ViewOptions", "make_app", "serve"]
