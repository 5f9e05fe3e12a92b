"""Running models: registration of the execution provider, the session, its captured graphs and buffers."""
