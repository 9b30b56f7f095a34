"""The suite: one folder per kind of question, see CONTRIBUTING.md."""
