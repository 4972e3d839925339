"""The ufwatch exporter inside vLLM: what its ``/metrics`` page cannot say, in a text file for the agent.

Importing the package imports nothing else. vLLM finds :func:`.plugin.register` and :class:`.stat_logger.ExactLogger`
by their entry points; without ``UFWATCH_EXPORT_DIR`` neither does anything.
"""
