"""Conversations out of Ember and into it, as files."""
