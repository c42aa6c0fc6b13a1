"""The English words that the scene rules know, by what they do in a sentence.

Closed classes are complete enough to parse by; open classes (verbs, places, people) are the common
ones, and the rules fall back on word forms where a word isn't listed.
"""

from __future__ import annotations

__all__ = [
    "ADJECTIVES",
    "ADVERBS",
    "ANIMATE",
    "AUXILIARIES",
    "BE",
    "CONNECTIVES",
    "DAYTIMES",
    "DETERMINERS",
    "FEELING",
    "FEMALE",
    "MALE",
    "MASS",
    "MOTION",
    "NOT_PLACES",
    "NUMBERS",
    "PERCEPTION",
    "PLACES",
    "PLACE_PREPOSITIONS",
    "POSITION",
    "POSSESSIVES",
    "PREPOSITIONS",
    "PRONOUNS",
    "QUANTIFIED",
    "RELATIVES",
    "SPEECH",
    "SUBORDINATORS",
    "TIMES",
    "VAGUE",
    "VERBS",
    "WEATHER",
]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


POSSESSIVES = _set("my your his her its our their")
NUMBERS = _set("one two three four five six seven eight nine ten eleven twelve twenty hundred")
DETERMINERS = (
    _set(
        "a an the this that these those some any every each no another both all few many several"
        " other such half"
    )
    | POSSESSIVES
    | NUMBERS
)
PRONOUNS = _set("i you he she it we they this that these those me him them us who")
QUANTIFIED = _set(
    "nobody nothing everybody everyone everything somebody someone something anybody anyone"
    " anything none neither"
)
RELATIVES = _set("who which that whose whom")
SUBORDINATORS = _set(
    "when as while after before because if until till once since although though unless whenever"
    " where wherever"
)
CONNECTIVES = _set(
    "and but so then or yet suddenly now meanwhile finally however still instead therefore also"
    " perhaps maybe well oh ah yes no okay ok sure next first second third lastly afterwards"
    " together somehow soon"
)
PLACE_PREPOSITIONS = _set(
    "in on at inside beside under near across along outside behind by above below between over"
    " beneath atop aboard among within underneath alongside amid around beyond through against"
    " into onto toward towards"
)
PREPOSITIONS = PLACE_PREPOSITIONS | _set(
    "with without for to from of about off out up down past during after before like until since"
    " except despite upon via per than as"
)
BE = _set("is are was were am be been being 's 're 'm isn't aren't wasn't weren't")
AUXILIARIES = BE | _set(
    "has have had having do does did can could will would may might must shall should 've 'd 'll"
    " hasn't haven't hadn't don't doesn't didn't can't cannot couldn't won't wouldn't mustn't"
    " shouldn't"
)
ADVERBS = _set(
    "always never often sometimes usually rarely seldom just only even almost nearly already again"
    " still soon now then there here once twice too very quite so away back home together alone"
    " forward forwards backward inside outside upstairs downstairs up down out off not ever"
    " perhaps maybe first finally far close straight aloud everywhere somewhere nowhere all"
    " simply really barely hardly also suddenly meanwhile afterwards anyway tonight today"
    " tomorrow yesterday at"
) - {"at"}
ADJECTIVES = _set(
    "old young small little big tall short long great tiny huge large giant red blue green yellow"
    " white black grey gray golden silver brown pink purple orange dark bright light deep quiet"
    " silent loud soft hard warm cold hot cool cosy icy frozen wet dry dusty muddy empty full busy"
    " crowded narrow wide broad high low strange new ancient broken lost lonely friendly brave shy"
    " clever wise kind gentle sleepy tired hungry thirsty happy sad angry worried curious proud"
    " poor rich young retired last first second third next only same own good bad best better"
    " beautiful pretty ugly lovely perfect patient stubborn nervous calm thick thin heavy sharp"
    " round square flat steep rocky sandy snowy rainy windy stormy sunny foggy misty cloudy moonlit"
    " starry wooden stone glass iron wild tame secret hidden missing single double whole main"
    " distant nearby talking barking whole entire pale clear fresh sweet bitter early late open"
    " closed simple plain fine rusty royal noble fierce mighty famous elderly"
)
SPEECH = _set(
    "say ask whisper shout cry call answer reply murmur mutter tell announce explain add scream"
    " yell sing mumble reply promise beg warn gasp laugh exclaim continue agree admit insist"
    " repeat respond declare order hiss growl roar squeak chirp croak sigh"
)
FEELING = _set(
    "smile weep cry sigh laugh tremble gasp frown hope want fear love feel think dream remember"
    " wonder blush grin shiver sob worry wish hesitate believe doubt hate miss regret chuckle"
    " giggle beam relax panic blink nod swallow breathe"
)
PERCEPTION = _set(
    "look see watch stare notice hear listen gaze glance peer spot study examine observe discover"
)
MOTION = _set(
    "walk run ride drive fly swim climb jump leap crawl race chase flee follow rush hurry dash"
    " gallop sail row march cross wander stroll step skip dance slide roll drift float sneak creep"
    " stumble tumble fall dive rise descend enter leave arrive come go return reach approach travel"
    " move turn spin charge escape head trot sprint glide soar paddle cycle skate ski plunge"
)
POSITION = _set(
    "stand sit live wait lie be work sleep stay arrive rest hide kneel dwell lean linger"
    " gather wake camp land"
)
VAGUE = _set("do work happen manage try succeed help")
VERBS = (
    SPEECH
    | FEELING
    | PERCEPTION
    | MOTION
    | POSITION
    | VAGUE
    | _set(
        "accept aim allow appear arrange attack bake bark bathe beat become bend bind bite bleed"
        " blink bloom blow boil bounce bow break bring brush build burn burst bury buy carry carve"
        " catch change chase chop circle clap clean clear climb close collect cook count cover"
        " crack crash crouch crumble crush cut dance dangle deliver dig disappear dissolve draw drag"
        " drink drip drop drown drum dry dust eat echo empty end explode face fade fasten feed fight"
        " fill find finish fix flash flicker flip flow flutter fold follow forget freeze gather get"
        " give glitter glow grab grasp greet grind grip grow guard guide hammer hand hang hold hop"
        " howl hug hum hunt ignite join keep kick kiss knit knock know land lay lead learn lend lift"
        " light lock lose lower make mark mend melt mix mount nail need offer open order own pack"
        " paint park part pass paste pat pay peel perch pick pin place plant plate plunge point"
        " polish pour press pretend print pull punch push put quit rain raise rattle read receive"
        " refuse release remove repair rescue rest ring rock rub sail save scatter scratch scrape"
        " search season seize sell send serve set settle sew shake share shatter shed shine shiver"
        " shoot show shrink shrug shut simmer sink sip slam slap slice slip slow smash smell smoke"
        " snap snatch sniff snow soak solve sort sow sparkle spill splash split spread spring"
        " sprinkle squeeze stack stare start steal steam steer stick stir stop store stretch strike"
        " strum stuff sway sweep swell swing switch take tap taste teach tear throw tick tie tilt"
        " touch tow trace trade train trap tug turn twinkle twist type uncover unfold unlock unroll"
        " use vanish visit wag wake warm wash wave wear weave welcome whirl whisk whistle win wind"
        " wink wipe wrap write zip blend combine preheat pick trust beat belong burn contain hover score tackle crowd scream slip dare"
        " back bump trip crackle graze clutch hurl toss pour stamp splash whirr hiss beep buzz click"
        " clatter creak rumble thunder bark purr growl chirp squeal chatter argue cheer bow curl"
        " unwrap unpack pluck gallop pedal steer park pitch spray scrub wipe mop sprout bud wilt"
        " gleam shimmer blaze smoulder fizz bubble steam toast roast fry grill serve garnish drizzle"
        " squeeze zip button lace knot patch stitch weld saw drill dig rake hoe water feed milk"
        " shear groom saddle land dock anchor moor launch orbit circle hover glide perch nest"
        " scout track stalk pounce snarl bite chew gnaw nibble gulp swallow lick sniffle yawn"
        " stretch doze snore dream blink squint stare nudge tug yank drag haul heave shove"
        " beckon salute curtsy embrace kiss tickle poke pinch scratch rub pat stroke caress"
        " mount dismount board exit depart return vanish fade appear emerge surface submerge"
        " lap seem keep kneel plan prefer prepare remain sell spend study"
    )
)
DAYTIMES = _set(
    "morning evening night midnight noon dawn dusk sunrise sunset afternoon twilight daybreak"
    " nightfall midday tonight winter summer spring autumn sundown moonrise"
)
TIMES = DAYTIMES | _set(
    "day days week weeks month months year years moment moments while minute minutes hour hours"
    " time times life nights mornings evenings today tomorrow yesterday season"
    " century ages monday tuesday wednesday thursday friday saturday sunday january february"
    " april june july august september october november december christmas"
)
WEATHER = _set(
    "rain snow fog mist wind winds storm thunder lightning sun sunlight moonlight light stars sky"
    " moon cloud clouds air breeze hail frost heat cold darkness shadow shadows night dusk dawn"
    " smoke dust snowflakes raindrops silence sea waves tide"
)
MASS = WEATHER | _set(
    "music laughter water fire dinner breakfast lunch time life love hope fear history science"
    " work food money blood sand grass ice sleep death peace war steam"
)
PLACES = _set(
    "island forest wood woods lake market tower greenhouse pier alley river field fields bridge"
    " station hut road kitchen deck ship workshop waterfall park cave beach theatre theater village"
    " town city house home cottage castle palace room bedroom bathroom hall hallway corridor cellar"
    " attic basement garden yard courtyard barn farm stable street lane square plaza shop store"
    " bakery cafe café bar pub tavern inn hotel restaurant diner library museum school classroom"
    " university office laboratory lab hospital church temple monastery chapel cathedral graveyard"
    " cemetery mountain mountains hill hills valley cliff cliffs canyon gorge desert dune dunes"
    " plain plains meadow prairie jungle swamp marsh moor shore coast seaside harbour harbor port"
    " dock docks quay bay ocean sea lagoon reef stream creek pond pool well roof rooftop balcony"
    " terrace porch doorway stairs staircase stage arena stadium platform train carriage bus tram"
    " car truck boat raft cabin cockpit bridge spaceship spacecraft station planet moon orbit space"
    " galaxy corner counter corral tent camp campfire clearing path trail track highway crossroads"
    " tunnel mine quarry factory warehouse airport runway plane studio gallery ballroom throne"
    " dungeon prison cell lighthouse windmill mill vineyard orchard glacier summit peak ridge slope"
    " ledge volcano crater savanna savannah tundra oasis riverbank bank waterfront boardwalk"
    " playground zoo circus fair carnival himalayas alps arctic countryside kingdom land world"
    " horizon neighbourhood neighborhood apartment flat elevator lobby freighter submarine"
    " observatory planetarium backyard driveway garage parking lot alleyway rink court pitch"
    " backstage foyer aisle nest burrow den lair treetop treetops ruins fountain"
)
NOT_PLACES = _set(
    "hand hands head face eyes eye arm arms shoulder shoulders knee knees lap feet foot heart mind"
    " mouth chest back neck hair ear ears lips voice breath silence fear surprise fact love trouble"
    " end way case need hurry order turn place danger peace pieces half vain tears pain detail"
    " return charge addition general particular least last first once all word words name dream"
    " dreams song songs left right side colour color pair line row screen middle distance background beginning sign"
)
MALE = _set(
    "man boy king prince father dad brother son uncle grandfather grandpa fisherman husband knight"
    " monk wizard gentleman nephew lad sir mr waiter actor"
)
FEMALE = _set(
    "woman girl queen princess mother mum mom sister daughter aunt grandmother grandma wife witch"
    " nun lady niece maid mrs ms miss waitress actress"
)
ANIMATE = (
    MALE
    | FEMALE
    | _set(
        "person people child children baby keeper baker painter sailor captain pilot driver farmer"
        " teacher student doctor nurse singer musician dancer writer poet artist inventor scientist"
        " engineer astronaut explorer hunter soldier guard guide detective chef cook gardener"
        " shepherd merchant traveller traveler stranger friend neighbour neighbor villager villagers"
        " robot android alien dragon giant ghost fairy elf gnome dwarf troll monster mermaid fox"
        " wolf bear cat dog puppy kitten horse pony owl crow bird sparrow eagle hawk duck goose swan"
        " rabbit hare mouse rat squirrel hedgehog deer stag moose elephant lion tiger leopard"
        " cheetah monkey ape gorilla snake lizard frog toad turtle tortoise fish whale dolphin shark"
        " octopus seal penguin otter beaver badger goat sheep lamb cow bull pig donkey camel bee"
        " butterfly spider ant crab cub cubs calf foal chick herd flock pack crowd family crew team"
        " audience bartender barista clerk janitor journalist reporter photographer librarian"
        " clockmaker carpenter blacksmith tailor cobbler weaver diver climber cyclist runner swimmer"
        " skater boxer wrestler player coach thief burglar spy pirate ninja samurai emperor duke"
        " duchess mayor judge lawyer officer policeman firefighter postman courier mechanic miner"
        " lumberjack beekeeper violinist pianist drummer cellist conductor"
    )
)
