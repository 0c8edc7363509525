"""Machine translation: the task plugin of vlplatform."""
