"""The zoo: one file finds or builds one model. ``models.zoo`` lists them, ``models.data`` makes their inputs."""
