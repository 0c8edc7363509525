"""Vision parts shared by tasks: backbones."""
