"""A simulated vLLM whose every number is known: what it did (``truth``) and what it says about it (``page``).

The core (schedule, scenario, blocks, scheduler, engine, page) is pure: time is an argument and chance comes from the
scenario's seed. :mod:`ufwatch.sim.server` puts it on a socket and on a real clock.
"""
