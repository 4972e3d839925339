"""The KV cache, pinned memory and the breaker, for grafanalib's tools; ``ufwatch dashboards`` writes the same."""

from ufwatch.render.boards import named

dashboard = named("memory")
