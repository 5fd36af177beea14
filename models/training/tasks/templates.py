"""How people ask about an image of things: data, with no rule in it."""

from collections.abc import Mapping

from models.training.rng import Templates

_IMAGE = "(picture|image|picture|image|photo|drawing)"
_THING = "(object|shape|thing|one)"

ONE = Templates(learnt=("object", "shape", "thing", "one", "figure"), held_out=("object", "shape", "item"))
"""A thing without its name."""

DESCRIBE = Templates(
    learnt=(
        f"What is in (this|the) {_IMAGE}?",
        f"(What's|What is) in (this|the) {_IMAGE}?",
        f"(Describe|Describe|Please describe) (this|the) {_IMAGE}.",
        f"What (do you see|can you see|can be seen) (in this {_IMAGE}|in the {_IMAGE}|here|)?",
        f"What does (this|the) {_IMAGE} show?",
        f"What is (shown|shown here|to be seen) (in this {_IMAGE}|)?",
        f"(Describe|Describe briefly) what (you see|is in the {_IMAGE}).",
        "(Describe this.|Describe it.|What is this?|What's this?)",
        f"Tell me what (is in the {_IMAGE}|you see).",
        f"(Give me a description of|Explain) (this|the) {_IMAGE}.",
        f"(Can|Could) you describe (this|the) {_IMAGE}?",
        f"(Tell me|Please tell me|Can you tell me|Say) what (this|the) {_IMAGE} (shows|contains|has in it).",
        f"(I want|I would like) to know what (is in|can be seen in) (this|the) {_IMAGE}.",
        f"What (would|could) (I|you|one|we) see (in|on) (this|the) {_IMAGE}?",
        f"(Look at|Have a look at) (this|the) {_IMAGE} and (describe it|tell me about it|say what you see).",
        f"(What are you looking at|What is there to see|What can be found) (in this {_IMAGE}|here|)?",
        f"(Talk about|Say something about|Summarise) (this|the) {_IMAGE}.",
        f"How would you describe (this|the) {_IMAGE}?",
        f"What (do|would) you (notice|recognise|see) when looking at (this|the) {_IMAGE}?",
        f"When you look at (this|the) {_IMAGE}, what do you see?",
        f"What (can|could|do) (I|we|you) (find|see|look at) (in this {_IMAGE}|on this {_IMAGE}|here)?",
    ),
    held_out=(
        f"What do you see when you look at (this|the) {_IMAGE}?",
        f"Tell me about (this|the) {_IMAGE}.",
        f"What can I see (in this {_IMAGE}|here)?",
        f"Please describe what the {_IMAGE} shows.",
        f"What's shown in the {_IMAGE}?",
    ),
)
LIST = Templates(
    learnt=(
        f"(List|Name) (all|the|all the) (objects|shapes|things) (in the {_IMAGE}|you see|).",
        f"(Which|What) (objects|shapes|things) (are|do you see) (in the {_IMAGE}|here)?",
        f"What (objects|things|shapes) are (there|in the {_IMAGE}|in this {_IMAGE}|here)?",
        f"(Tell me|Say|Write down) what (objects|things|shapes) (there are|you see|the {_IMAGE} contains).",
        f"(Which|What) (kind|kinds|sorts) of (objects|things) (are there|are shown|does the {_IMAGE} have)?",
        f"(Can|Could) you (list|name) (the|all the) (objects|things|shapes) (here|in the {_IMAGE}|)?",
        f"Please (list|name) (everything|all) (you see|in the {_IMAGE}).",
    ),
    held_out=(
        f"Tell me which (objects|shapes) the {_IMAGE} has.",
        "What kinds of (shapes|things) do you see here?",
    ),
)

SHAPE = Templates(
    learnt=(
        "What shape is the {the}?",
        "(What|Which) shape (does the {the} have|is the {the})?",
        "What is the shape of the {the}?",
        "What is the {the}?",
        "What kind of shape is the {the}?",
        f"(What|Which) shape is the {{the}} in (this|the) {_IMAGE}?",
        "(Tell me|Name) the shape of the {the}.",
        "The {the} is what shape?",
        "(Can|Could) you (tell me|say|see) (what|which) shape the {the} (is|has)?",
        "(I want|I would like) to know the shape of the {the}.",
        "What would you call the shape of the {the}?",
        "How would you (name|describe) the shape of the {the}?",
        "(In|Of) (what|which) (form|shape) is the {the}?",
        "(What|Which) (form|figure) is the {the}?",
        "(Tell me|Say|Name) (what|which) shape you see for the {the}.",
        "The {the}: (what|which) (shape|form)?",
    ),
    held_out=(
        "What form does the {the} have?",
        f"Which shape can you see for the {{the}} in the {_IMAGE}?",
        "Can you name the shape of the {the}?",
    ),
)
SHAPE_ALONE = Templates(
    learnt=(
        "(What|Which) shape is (it|this|that|shown|here|in the picture|in this image|there)?",
        f"(What|Which) shape (do you see|can you see) (in this {_IMAGE}|)?",
        f"What is the shape (in the {_IMAGE}|of the object|)?",
        f"What (kind|sort) of shape is (this|it|in the {_IMAGE}|shown)?",
        "Name (the|this) shape.",
        f"(What|Which) shape does the {_THING} have?",
        "Is it a (circle|square|triangle|star) or (something|what) else?",
        f"Identify the shape (in the {_IMAGE}|).",
        "(Tell me|Say|Please name) (what|which) shape (this|it) is.",
        f"(What|Which) shape (am I seeing|are you looking at|is to be seen) (here|in the {_IMAGE}|)?",
        f"(What|Which) (form|figure) (is this|does the {_IMAGE} have|is it)?",
        f"(Can|Could) you (name|identify) the shape (here|in the {_IMAGE}|)?",
        "(I want|I would like) to know (what|which) shape this is.",
    ),
    held_out=(
        f"Which shape does the {_IMAGE} show?",
        "What shape am I looking at?",
        "Can you tell me which shape this is?",
    ),
)

COLOUR = Templates(
    learnt=(
        "(What|Which) colour is the {the}?",
        "What colour does the {the} have?",
        "What is the colour of the {the}?",
        f"What colour is the {{the}} in (this|the) {_IMAGE}?",
        "(Tell me|Name) the colour of the {the}.",
        "The {the} is what colour?",
        "What's the colour of the {the}?",
        "In (which|what) colour is the {the} (drawn|shown|painted)?",
        "(Colour of the {the}?|{the} colour?)",
        "(What|Which) colour has the {the}?",
        "How is the {the} (painted|drawn in colour)?",
        "(Can|Could) you (say|see|name) (what|which) colour the {the} (is|has)?",
        "(I want|I would like) to know (the colour of the {the}|what colour the {the} is).",
        f"(What|Which) colour (did they|did you|would you) (give|paint|call|name) the {{the}} (in the {_IMAGE}|)?",
        f"What colour do you see (on|for) the {{the}} (in the {_IMAGE}|)?",
        "(Tell me|Say|Please say) (what|which) colour the {the} is.",
        "(What|Which) colour has the {the} been (given|painted)?",
        "How would you (name|describe) the colour of the {the}?",
        "The {the} has (what|which) colour?",
    ),
    held_out=(
        "How is the {the} coloured?",
        "Which colour has the {the} got?",
        "Can you tell the colour of the {the}?",
        f"What colour would you say the {{the}} in the {_IMAGE} is?",
    ),
)

BACKGROUND = Templates(
    learnt=(
        "(What|Which) colour is the background?",
        f"What is the (background colour|colour of the background) (of the {_IMAGE}|)?",
        "What colour does the background have?",
        "(What is|Tell me) the background's colour.",
        "What colour is behind the (objects|shapes)?",
        "(What|Which) colour has the background?",
        "(Can|Could) you (say|see) (what|which) colour the background is?",
        "How is the background painted?",
        "(Tell me|Name|I want to know) the colour of the background.",
    ),
    held_out=("The background is what colour?", "Which colour has the background got?"),
)

PLACE = Templates(
    learnt=(
        "Where is the {the}?",
        f"Where (in the {_IMAGE}|) is the {{the}}?",
        f"Where is the {{the}} in (this|the) {_IMAGE}?",
        "(Where's|Where can I find|Where do you see) the {the}?",
        "(What|Which) (part|corner or side) of the picture is the {the} in?",
        "(Tell me|Say) where the {the} is.",
        "What is the (position|location|place) of the {the}?",
        "(Find|Locate) the {the}.",
        "(At|In) (which|what) (place|position) is the {the}?",
        f"In (which|what) part of the {_IMAGE} is the {{the}}?",
        f"(Can|Could) you (say|see|find) where the {{the}} is (in the {_IMAGE}|)?",
        "(Whereabouts is|Where did they put|Where have they placed) the {the}?",
        f"(I want|I would like) to know where (the {{the}} is|to find the {{the}}) (in the {_IMAGE}|).",
        "(At which spot|In which area|In which region) is the {the} (located|placed|)?",
        f"Where (about|roughly) (in the {_IMAGE}|) (does the {{the}} lie|is the {{the}} placed)?",
        "The {the} is (where|at which place)?",
        "(Can|Could) you (locate|find) the {the}?",
        f"Where (does one|do I|would you) find the {{the}} (in the {_IMAGE}|)?",
        "(Say|Please tell me) (whereabouts|where) the {the} can be found.",
    ),
    held_out=(
        "Where is the {the} located?",
        f"Whereabouts in the {_IMAGE} is the {{the}}?",
        "Can you tell me where the {the} is?",
    ),
)

AT_PLACE = Templates(
    learnt=(
        "What is {place}?",
        "(What|Which) (object|shape|thing) is {place}?",
        "What do you see {place}?",
        f"What is {{place}} of the {_IMAGE}?",
        "Which (shape|object) can be seen {place}?",
        "(Say|Name|I want to know) what is {place}.",
        "(What|Which) (object|shape|thing) (lies|can you find|do you find|is placed) {place}?",
        "(Can|Could) you (say|see) what is {place}?",
        "Is there something {place}, and what?",
        "What (is there|is to be found|have you got) {place}?",
    ),
    held_out=("What can be found {place}?", "Tell me what is {place}."),
)

SIZE = Templates(
    learnt=(
        "(How|What) (big|large) is the {the}?",
        "What size is the {the}?",
        "Is the {the} (small or large|large or small|big or small|small or big)?",
        "What is the size of the {the}?",
        "(What|Which) size does the {the} have?",
        "Tell me (the size of the {the}|how big the {the} is).",
        "Would you say the {the} is (large or small|small or large)?",
        "(Can|Could) you (say|tell) (how big|how large|what size) the {the} is?",
        "Is the {the} (big|a big one|small|a small one) or not?",
        "How would you call the size of the {the}?",
        "(I want|I would like) to know the size of the {the}.",
    ),
    held_out=("Is the {the} a small one or a large one?", "How would you describe the size of the {the}?"),
)

LARGER = Templates(
    learnt=(
        "Which (object|shape|one) is (larger|bigger)?",
        "(Which|What) is (larger|bigger), the {one} or the {other}?",
        "Which is the (larger|bigger|largest|biggest) (object|shape|one)?",
        "What is the (largest|biggest) (object|shape|thing)?",
    ),
    held_out=("Which of the two is larger?", "Of the {one} and the {other}, which is bigger?"),
)
SMALLER = Templates(
    learnt=(
        "Which (object|shape|one) is smaller?",
        "(Which|What) is smaller, the {one} or the {other}?",
        "Which is the (smaller|smallest) (object|shape|one)?",
        "What is the smallest (object|shape|thing)?",
    ),
    held_out=("Which of the two is smaller?", "Of the {one} and the {other}, which is smaller?"),
)

COUNT = Templates(
    learnt=(
        "How many {many} are (there|in the picture|in this image|here|in the image)?",
        "How many {many} (do you see|can you see|are shown|can be seen)?",
        "Count the {many}.",
        f"How many {{many}} are in (this|the) {_IMAGE}?",
        "What is the number of {many}?",
        f"How many {{many}} does the {_IMAGE} (have|show|contain)?",
        "(Tell me|Say) how many {many} (there are|you see).",
        "(Number of {many}?|How many {many}?)",
        f"How many {{many}} can (I|you|we) see in the {_IMAGE}?",
        "I want to know how many {many} there are.",
        f"(Can|Could) you (tell me|say) how many {{many}} (there are|you see|the {_IMAGE} has)?",
        f"(Please|) (give me|find) the (number|count) of {{many}} (in the {_IMAGE}|here|).",
        "What is the (count|total) of {many}?",
        f"(I would like to know|Say) how many {{many}} (the {_IMAGE} contains|are there).",
        f"How many {{many}} (would you count|could you count|are to be seen|have you got) (here|in the {_IMAGE}|)?",
        f"(Count|Count up) (all|all the) {{many}} (in the {_IMAGE}|you see|please|).",
        "There are how many {many}?",
    ),
    held_out=(
        "Can you count the {many}?",
        "What's the count of {many} here?",
        f"Please count how many {{many}} the {_IMAGE} shows.",
        "How many {many} do you count?",
    ),
)

IS_THERE = Templates(
    learnt=(
        f"Is there {{a}} (in the {_IMAGE}|in this {_IMAGE}|here|)?",
        "(Do|Can) you see {a}?",
        f"Does (the|this) {_IMAGE} (have|show|contain) {{a}}?",
        "Is {a} (shown|there|visible|to be seen)?",
        "Can {a} be seen?",
        "Is there any {bare} (here|)?",
        "(Are there any|Do you see any) {many} (in the picture|)?",
        f"(Would|Could) (you|one|I) (see|find|say there is) {{a}} (in the {_IMAGE}|here|)?",
        f"(Can|Could) you (find|see|detect) {{a}} (in the {_IMAGE}|anywhere|)?",
        f"(Is it true that|Do you agree that|Would you say that) there is {{a}} (in the {_IMAGE}|)?",
        f"Has (the|this) {_IMAGE} got {{a}}?",
        f"Is {{a}} (in|among the things in|one of the things in) (this|the) {_IMAGE}?",
        f"(Tell me whether|Tell me if|Say if|I want to know if) there is {{a}} (in the {_IMAGE}|here|).",
        f"There is {{a}} (in the {_IMAGE}|here|), (right|is there not|yes or no)?",
        f"Does (any|some) part of (this|the) {_IMAGE} (show|have|contain) {{a}}?",
        f"Is {{a}} (anywhere|somewhere) (in|on) (this|the) {_IMAGE}?",
        f"Does {{a}} (appear|occur) (in|on) (this|the) {_IMAGE}?",
        f"Is {{a}} (included|contained|present) (in|on) (this|the) {_IMAGE}?",
        f"Does {{a}} belong to (this|the) {_IMAGE}?",
        f"Is {{a}} (a piece|one) of what (this {_IMAGE} shows|you see)?",
        "(Do|Did) you (notice|recognise|discover) {a}?",
        f"Could {{a}} be (in|on) (this|the) {_IMAGE}?",
    ),
    held_out=(
        f"Would you find {{a}} in (this|the) {_IMAGE}?",
        f"Is {{a}} part of the {_IMAGE}?",
        "Can you spot {a}?",
    ),
)

IS_COLOUR = Templates(
    learnt=(
        "Is the {shape} {colour}?",
        "Is the colour of the {shape} {colour}?",
        "Is the {shape} {colour} (in this picture|or not|)?",
        "(Does the {shape} look|Would you say the {shape} is) {colour}?",
        "Is it (true|right) that the {shape} is {colour}?",
        "(Do you think|Would you agree|Can you confirm) that the {shape} is {colour}?",
        "(Is it|Do we have|Is this) a {colour} {shape}?",
        "Has the {shape} (got|) a {colour} colour?",
        "(Tell me if|Tell me whether|I want to know if) the {shape} is {colour}.",
        "The {shape} is {colour}, (right|yes or no|is it not)?",
        "Is {colour} the colour of the {shape}?",
    ),
    held_out=("Is the {shape} a {colour} one?", "Do you agree that the {shape} is {colour}?"),
)

IS_BESIDE = Templates(
    learnt=(
        "Is the {one} {side} the {other}?",
        "Is the {one} {side} the {other} (in the picture|or not)?",
        "Does the {one} (lie|stand) {side} the {other}?",
        "(Do you agree|Is it true|Can you confirm|Would you agree) that the {one} is {side} the {other}?",
        "(Tell me if|Tell me whether|I want to know if) the {one} is {side} the {other}.",
        "The {one} is {side} the {other}, (right|yes or no|is it not)?",
        "(Can|Could) you (see|find) the {one} {side} the {other}?",
    ),
    held_out=("Would you say that the {one} is {side} the {other}?",),
)

PLACE_FORMS: Mapping[str, tuple[str, ...]] = {
    "at the top left": ("at the top left", "in the top left", "in the upper left corner", "in the top left corner"),
    "at the top": ("at the top", "at the top centre", "at the top in the middle"),
    "at the top right": (
        "at the top right",
        "in the top right",
        "in the upper right corner",
        "in the top right corner",
    ),
    "on the left": ("on the left", "at the left", "on the left side"),
    "in the centre": ("in the centre", "in the middle", "at the centre"),
    "on the right": ("on the right", "at the right", "on the right side"),
    "at the bottom left": ("at the bottom left", "in the bottom left corner", "in the lower left corner"),
    "at the bottom": ("at the bottom", "at the bottom centre", "at the bottom in the middle"),
    "at the bottom right": ("at the bottom right", "in the bottom right corner", "in the lower right corner"),
}
"""How users say a place."""

SIDES: Mapping[str, tuple[str, ...]] = {
    "to the left of": ("to the left of", "left of", "on the left of"),
    "to the right of": ("to the right of", "right of", "on the right of"),
    "above": ("above", "over", "higher than"),
    "below": ("below", "under", "lower than"),
}
"""How users say where one thing is from another."""

ITS_COLOUR = Templates(
    learnt=(
        "(And what|What|And which) colour is it?",
        "(And its colour|Its colour|What is its colour|What colour does it have|And the colour)?",
        "Which colour has it?",
        "(And of|Of) (what|which) colour is it?",
        "(How is it painted|And how is it painted|What colour has it)?",
        "(What|How) about the colour?",
    ),
    held_out=("And in what colour?", "What about its colour?"),
)
ITS_SHAPE = Templates(
    learnt=(
        "(And what|What|And which) shape (is it|does it have)?",
        "(And its shape|Its shape|What is its shape|What is it|And the shape)?",
        "(And in|In|Of) (what|which) (shape|form) is it?",
        "(What|How) about the shape?",
        "(What form has it|And its form|Which figure is it)?",
    ),
    held_out=("And of what shape?", "What about its shape?"),
)
ITS_PLACE = Templates(
    learnt=(
        "(And where|Where) is it?",
        "(And its place|Its position|What is its position|In which part is it|And the place)?",
        "Where (in the picture|in the image) is it?",
        "(And where|Where) (does it lie|is it placed|do you find it|can I find it)?",
        "(What|How) about (the place|its place)?",
        "Whereabouts is it?",
    ),
    held_out=("And whereabouts?", "Where can it be found?"),
)
ITS_SIZE = Templates(
    learnt=(
        "(And how|How) (big|large) is it?",
        "(And its size|Its size|What is its size|And the size|What size is it)?",
        "Is it (small or large|large or small|big or small)?",
        "(And in|Of) (what|which) size is it?",
        "(What|How) about the size?",
    ),
    held_out=("And of what size?", "What about its size?"),
)
FOLLOWING = Templates(
    learnt=("And ", "OK. ", "Thanks. ", "Now: ", "And now: ", "Good. ", "", "", "", "", ""),
    held_out=("Fine. ", "Right. ", "", ""),
)
"""How a further question may begin."""
