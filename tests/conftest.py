"""For all tests: how long a random example takes is no property of the code on machines that share their cores."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared_machine", deadline=None)
settings.load_profile("shared_machine")
