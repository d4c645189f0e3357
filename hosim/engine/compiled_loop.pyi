from hosim.engine.loop import Loop

SOURCE: str
Extension: type[Loop]
