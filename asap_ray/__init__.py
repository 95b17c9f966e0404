"""asap-ray: asynchronous, disaggregated prefill of Mixture-of-Experts models on Ray."""

from typing import Final

__version__: Final = "0.1.0"
