"""Settings of the test run: a data folder of its own, so that no test sees an installation's secrets."""

import os
import tempfile

for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
    del os.environ[name]
os.environ["GATEWAY_DATA_DIR"] = tempfile.mkdtemp(prefix="pointsman-test-")

from gateway.settings import *  # noqa: E402, F403
