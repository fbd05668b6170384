-- wide: records of more bytes than this are large: fewer than 1000 of them are read together.
local WIDE = 4096
