"""Instructions: ``forms.txt`` says which there are, the modules what they do."""
