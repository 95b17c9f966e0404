"""Property tests are seeded, and know no deadline: the machine is shared."""

from hypothesis import settings

settings.register_profile("seeded", deadline=None, derandomize=True)
settings.load_profile("seeded")
