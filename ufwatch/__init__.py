"""ufwatch: the observability and SLO agent for LLM inference.

Importing the package imports nothing else: each door (``ufwatch.cli``) pulls in what it needs.
"""

__version__ = "0.1.0"
