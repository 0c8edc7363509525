"""Image captioning: the task plugin of vlplatform."""
