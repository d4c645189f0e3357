from hosim.engine.loop import Loop as Loop

SOURCE: str
