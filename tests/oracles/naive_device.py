"""A caching allocator written down from the published rules without any clever structure, which
records itself as PyTorch does.

It shares nothing with hosim's: free memory is not kept but found, each time, as what lies between
held blocks; every search is a scan.
"""

import random

MIB = 1 << 20
SMALL, LARGE = 2 * MIB, 20 * MIB


class NaiveDevice:
    def __init__(
        self,
        seed: int = 0,
        capacity: int = 1 << 60,
        *,
        expandable: bool = False,
        split_limit: int = 1 << 60,
        divisions: int = 0,
        threshold: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.capacity = capacity
        self.expandable = expandable
        self.split_limit = split_limit
        self.divisions = divisions
        self.threshold = threshold
        self.searches = 0  # of the large pool
        self.segments: list[
            dict
            # address, size, stream, small, held: {address: [size, requested, state]}; expandable:
            # base, pages
        ] = []
        self.trace: list[dict] = []
        self.retries = 0

    # --- what a program does ---

    def malloc(self, requested: int, stream: int = 0) -> int | None:
        size = self.rounded(requested)
        self.searches += size > MIB
        found = self.find(size, stream)
        if found is None:
            self.collect_garbage()
            found = self.grow(size, stream)
        if found is None and self.split_limit < 1 << 60 and self.release_oversize(size, stream):
            found = self.grow(size, stream)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self.grow(size, stream)
        if found is None:
            self.log("oom", None, requested, stream)
            return None
        segment, address, free = found
        rest = free - size
        split = (
            rest >= 512
            if segment["small"] or self.expandable
            else rest > MIB and size < self.split_limit
        )
        segment["held"][address] = [size if split else free, requested, "active_allocated"]
        self.log("alloc", address, requested, stream)
        return address

    def free(self, address: int, *, used_elsewhere: bool = False) -> None:
        segment = self.segment_of(address)
        block = segment["held"][address]
        block[2] = "active_pending_free"
        self.log("free_requested", address, block[1], segment["stream"])
        if not used_elsewhere:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment = self.segment_of(address)
        _, requested, _ = segment["held"].pop(address)
        if not segment["held"]:
            segment["since"] = self.searches
        self.log("free_completed", address, requested, segment["stream"])

    def empty_cache(self) -> None:
        for segment in self.segments:
            for address in [
                a for a, block in segment["held"].items() if block[2] == "active_pending_free"
            ]:
                self.complete(address)
        for segment in list(self.segments):
            if segment.get("pages"):  # addresses of which nothing was ever mapped stay reserved
                for start, end in self.gaps(segment):
                    first, last = (
                        -(-(start - segment["base"]) // segment["page"]),
                        (end - segment["base"]) // segment["page"],
                    )
                    if first < last:
                        segment["pages"] -= set(range(first, last))
                        address = segment["base"] + first * segment["page"]
                        self.log(
                            "segment_unmap",
                            address,
                            (last - first) * segment["page"],
                            segment["stream"],
                        )
                if not segment["pages"]:
                    self.segments.remove(segment)
            elif "pages" not in segment and not segment["held"]:
                self.segments.remove(segment)
                self.log("segment_free", segment["address"], segment["size"], segment["stream"])

    def rounded(self, requested: int) -> int:
        """Up to the next of ``divisions`` equal steps between powers of two, or of 512 B."""
        if self.divisions > 1 and requested > 512 * self.divisions:
            low = 1
            while low * 2 <= requested:
                low *= 2
            return next(
                low + i * low // self.divisions
                for i in range(self.divisions + 1)
                if low + i * low // self.divisions >= requested
            )
        return max(512, (requested + 511) // 512 * 512)

    def give_back(self, segment: dict) -> None:
        self.segments.remove(segment)
        self.log("segment_free", segment["address"], segment["size"], segment["stream"])

    def cached(self) -> list[dict]:
        return [s for s in self.segments if not s["small"] and not s["held"] and "pages" not in s]

    def collect_garbage(self) -> None:
        """Over the threshold, whole free large segments that waited longer than the average go
        back, until enough did.
        """
        if not self.threshold or self.reserved() <= int(self.threshold * self.capacity):
            return
        excess = self.reserved() - int(self.threshold * self.capacity)
        ages = [(self.searches - s["since"], s) for s in self.cached()]
        while ages and excess > 0:
            mean = sum(age for age, _ in ages) / len(ages)
            for age, segment in [x for x in ages if x[0] >= mean]:
                excess -= segment["size"]
                self.give_back(segment)
                ages.remove((age, segment))

    def release_oversize(self, size: int, stream: int) -> bool:
        """One cached segment that is large enough, else oversize ones from the largest on; whether
        that makes up for the request.
        """
        wanted = max(size, self.split_limit)
        free = [
            (end - start, start, s)
            for s in self.segments
            if s["small"] == (size <= MIB) and s["stream"] == stream
            for start, end in self.gaps(s)
        ]
        free.sort(key=lambda x: x[:2])
        enough = [x for x in free if x[0] >= wanted]
        if enough:
            self.give_back(enough[0][2])
            return True
        given = 0
        for bytes_, _, segment in reversed(free):
            if given >= wanted or bytes_ < self.split_limit:
                break
            self.give_back(segment)
            given += bytes_
        return given >= wanted

    # --- how it finds memory ---

    def gaps(self, segment: dict) -> list[tuple[int, int]]:
        """Free mapped ranges."""
        result = []
        for start, end in self.mapped(segment):
            for address in sorted(a for a in segment["held"] if start <= a < end):
                if start < address:
                    result.append((start, address))
                start = address + segment["held"][address][0]
            if start < end:
                result.append((start, end))
        return result

    def mapped(self, segment: dict) -> list[tuple[int, int]]:
        if "pages" not in segment:
            return [(segment["address"], segment["address"] + segment["size"])]
        ranges: list[tuple[int, int]] = []
        for page in sorted(segment["pages"]):
            start = segment["base"] + page * segment["page"]
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], start + segment["page"])
            else:
                ranges.append((start, start + segment["page"]))
        return ranges

    def find(self, size: int, stream: int):
        fits = []
        for segment in self.segments:
            if segment["small"] != (size <= MIB) or segment["stream"] != stream:
                continue
            for start, end in self.gaps(segment):
                if end - start >= size:
                    # How far the gap could grow: to the next mapped page, or to the end of the
                    # reserved addresses.
                    reach = end
                    if "pages" in segment:
                        following = [a for a, _ in self.mapped(segment) if a >= end] + [
                            segment["base"] + segment["size"]
                        ]
                        reach = end if any(a == end for a in segment["held"]) else min(following)
                    fits.append((end - start, start, reach - start, segment))
        fits.sort(key=lambda fit: fit[:2])
        if not fits:
            return None
        best = 0
        while self.expandable and best + 1 < len(fits) and fits[best + 1][2] < fits[best][2]:
            best += 1
        free, start, _, segment = fits[best]
        if size < self.split_limit <= free or (
            size >= self.split_limit and free >= size + 20 * MIB
        ):
            return None
        return segment, start, free

    def grow(self, size: int, stream: int):
        small = size <= MIB
        if self.expandable:
            return self.grow_pages(size, stream, small)
        bytes_ = (
            SMALL
            if small
            else LARGE
            if size < 10 * MIB
            else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        )
        if self.reserved() + bytes_ > self.capacity:
            return None
        segment = {
            "address": self.place(bytes_),
            "size": bytes_,
            "stream": stream,
            "small": small,
            "held": {},
        }
        self.segments.append(segment)
        self.log("segment_alloc", segment["address"], bytes_, stream)
        return segment, segment["address"], bytes_

    def grow_pages(self, size: int, stream: int, small: bool):
        page = SMALL if small else LARGE
        for hole, segment in sorted(self.holes(stream, small), key=lambda x: x[0]):
            start = {end: start for start, end in self.gaps(segment)}.get(
                hole, hole
            )  # from the free block before it, if there is one
            end = segment["base"] + segment["size"]
            if start + size <= end and not any(start <= a < start + size for a in segment["held"]):
                break
        else:
            bytes_ = -(-self.capacity * 9 // 8 // page) * page
            start = self.place(bytes_)
            segment = {
                "base": start,
                "size": bytes_,
                "page": page,
                "pages": set(),
                "stream": stream,
                "small": small,
                "held": {},
            }
            self.segments.append(segment)
        base = segment["base"]
        wanted = [
            p
            for p in range((start - base) // page, -(-(start + size - base) // page))
            if p not in segment["pages"]
        ]
        while wanted:
            run = [p for i, p in enumerate(wanted) if p == wanted[0] + i]
            wanted = wanted[len(run) :]
            if self.reserved() + len(run) * page > self.capacity:
                return None  # what is mapped by now stays
            segment["pages"] |= set(run)
            self.log("segment_map", base + run[0] * page, len(run) * page, stream)
        return segment, start, next(e - s for s, e in self.gaps(segment) if s == start)

    def holes(self, stream: int, small: bool):
        """Where something unmapped begins, in which segment."""
        for segment in self.segments:
            if segment["stream"] == stream and segment["small"] == small:
                starts = [segment["base"]] + [end for _, end in self.mapped(segment)]
                mapped = {start for start, _ in self.mapped(segment)}
                yield from (
                    (a, segment)
                    for a in starts
                    if a not in mapped and a < segment["base"] + segment["size"]
                )

    def reserved(self) -> int:
        return sum(
            len(s["pages"]) * s["page"] if "pages" in s else s["size"] for s in self.segments
        )

    def place(self, size: int) -> int:
        """An address that a driver might give: anywhere that is free."""
        while True:
            address = (1 << 46) + self.random.randrange(1 << 10) * size
            taken = [(s.get("base", s.get("address")), s["size"]) for s in self.segments]
            if all(address + size <= a or a + n <= address for a, n in taken):
                return address

    def segment_of(self, address: int) -> dict:
        return next(s for s in self.segments if address in s["held"])

    # --- how it is seen ---

    def log(self, action: str, address: int | None, size: int, stream: int) -> None:
        entry = {"action": action, "size": size, "stream": stream, "time_us": len(self.trace)}
        entry["device_free" if address is None else "addr"] = address or 0
        self.trace.append(entry)

    def snapshot(self, skip: int = 0) -> dict:
        """As ``torch.cuda.memory._snapshot`` shows it, the first ``skip`` entries having fallen out
        of the ring buffer.
        """
        segments = []
        for segment in self.segments:
            for start, end in self.mapped(segment):
                blocks = [
                    {"address": a, "size": b[0], "requested_size": b[1], "state": b[2]}
                    for a, b in segment["held"].items()
                    if start <= a < end
                ]
                blocks += [
                    {"address": a, "size": e - a, "requested_size": 7, "state": "inactive"}
                    for a, e in self.gaps(segment)
                    if start <= a < end
                ]
                blocks.sort(key=lambda block: block["address"])
                segments.append({
                    "device": 0, "address": start, "total_size": end - start, "stream": segment["stream"], "blocks": blocks,
                    "segment_type": "small" if segment["small"] else "large", "is_expandable": "pages" in segment,
                })  # fmt: skip
        settings = {
            "expandable_segments": self.expandable,
            "max_split_size": self.split_limit if self.split_limit < 1 << 60 else -1,
            "garbage_collection_threshold": self.threshold,
            "roundup_power2_divisions": {str(1 << i): self.divisions for i in range(16)},
        }
        return {
            "segments": sorted(segments, key=lambda s: s["address"]),
            "device_traces": [self.trace[skip:]],
            "allocator_settings": settings,
        }
