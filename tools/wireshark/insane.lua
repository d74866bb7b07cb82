-- Dissects the frames of INSANE over UDP; the format is in docs/wire-format.md.
--
-- Wireshark: copy it into the personal Lua plugin folder (Help, About, Folders). tshark: -X lua_script:insane.lua
-- Frames are known by their first bytes on any port. Sealed frames show their header alone. A packet may hold several frames that were
-- joined: captures on the sending host show what the kernel or the network card cuts later.

local insane = Proto("insane", "INSANE frame")

local kinds = {
    [0] = "End", [1] = "Message", [2] = "Fragment", [3] = "Ack", [4] = "Hello", [5] = "Flow open", [6] = "Flow ack",
    [7] = "Credit", [8] = "Close", [9] = "Closed", [10] = "Ping", [11] = "Bye",
    [12] = "Bundle", [13] = "Ask",
}
local statuses = { [0] = "accepted", [1] = "no such channel", [2] = "domain not served", [3] = "no room" }

local f = {
    version = ProtoField.uint8("insane.version", "Version"),
    flags = ProtoField.uint8("insane.flags", "Flags", base.HEX),
    sealed = ProtoField.bool("insane.flags.sealed", "Sealed", 8, nil, 0x01),
    checked = ProtoField.bool("insane.flags.checked", "Checked", 8, nil, 0x02),
    length = ProtoField.uint16("insane.length", "Length"),
    key = ProtoField.uint16("insane.key", "Key id"),
    domain = ProtoField.uint32("insane.domain", "Domain", base.HEX),
    connection = ProtoField.uint32("insane.connection", "Connection", base.HEX),
    counter = ProtoField.uint64("insane.counter", "Counter"),
    sent_us = ProtoField.uint32("insane.sent_us", "Sent (us, sender's clock)"),
    check = ProtoField.uint32("insane.check", "Check", base.HEX),
    tag = ProtoField.bytes("insane.tag", "Tag"),
    kind = ProtoField.uint8("insane.record.kind", "Kind", base.DEC, kinds),
    rlength = ProtoField.uint16("insane.record.length", "Record length"),
    flow = ProtoField.uint32("insane.flow", "Flow"),
    index = ProtoField.uint32("insane.index", "Index"),
    sequence = ProtoField.uint64("insane.sequence", "Sequence"),
    joined = ProtoField.uint8("insane.joined", "Sinks that joined"),
    lifetime = ProtoField.uint32("insane.lifetime_us", "Lifetime (us)"),
    priority = ProtoField.uint8("insane.priority", "Priority", base.DEC, nil, 0xf0),
    timestamp = ProtoField.uint64("insane.timestamp_ns", "Emitted (ns)"),
    launch = ProtoField.uint64("insane.launch_ns", "Launch time (ns)"),
    total = ProtoField.uint32("insane.fragment.total", "Total length"),
    offset = ProtoField.uint32("insane.fragment.offset", "Offset"),
    count = ProtoField.uint16("insane.bundle.count", "Messages"),
    payload = ProtoField.bytes("insane.payload", "Payload"),
    ack_delay = ProtoField.uint32("insane.ack.delay_us", "Delay (us)"),
    ack_largest = ProtoField.uint64("insane.ack.largest", "Largest"),
    ack_range = ProtoField.string("insane.ack.range", "Arrived"),
    host = ProtoField.bytes("insane.hello.host", "Host"),
    incarnation = ProtoField.uint64("insane.hello.incarnation", "Incarnation", base.HEX),
    echo = ProtoField.uint64("insane.hello.echo", "Echo", base.HEX),
    max_frame = ProtoField.uint32("insane.hello.max_frame", "Largest frame"),
    adopted = ProtoField.bool("insane.hello.adopted", "Adopted", 8, nil, 0x01),
    reliable = ProtoField.bool("insane.flow.reliable", "Reliable", 8, nil, 0x01),
    epoch = ProtoField.bytes("insane.flow.epoch", "Epoch"),
    channel = ProtoField.uint64("insane.flow.channel", "Channel", base.HEX),
    first = ProtoField.uint64("insane.flow.first", "First sequence"),
    status = ProtoField.uint8("insane.flow.status", "Status", base.DEC, statuses),
    cursor = ProtoField.uint64("insane.cursor", "Cursor"),
    limit_index = ProtoField.uint32("insane.credit.index", "Index limit"),
    limit_bytes = ProtoField.uint64("insane.credit.bytes", "Byte limit"),
    settled = ProtoField.uint64("insane.account.settled", "Settled"),
    delivered = ProtoField.uint64("insane.account.delivered", "Delivered"),
    lost = ProtoField.uint64("insane.account.lost", "Lost"),
    dropped = ProtoField.uint64("insane.account.dropped", "Dropped"),
    expired = ProtoField.uint64("insane.account.expired", "Expired"),
    close_end = ProtoField.uint64("insane.close.end", "Messages carried"),
    ask_at = ProtoField.uint64("insane.ask.at", "Asked about"),
    close_last = ProtoField.bool("insane.close.last", "Last", 8, nil, 0x01),
}
insane.fields = f

local malformed = ProtoExpert.new("insane.malformed", "Malformed record", expert.group.MALFORMED, expert.severity.ERROR)
insane.experts = { malformed }

local HEADER, TAG = 32, 16

local function account(tree, body)
    tree:add_le(f.cursor, body(0, 8))
    tree:add_le(f.settled, body(8, 8))
    tree:add_le(f.delivered, body(16, 8))
    tree:add_le(f.lost, body(24, 8))
    tree:add_le(f.dropped, body(32, 8))
    tree:add_le(f.expired, body(40, 8))
end

-- Each takes the record's tree, its first 8 bytes and its body. The body's least length is in `least`.
local least = { [3] = 16, [4] = 32, [5] = 32, [6] = 24, [7] = 64, [8] = 8, [9] = 48, [13] = 8 }
local control = {
    [3] = function(tree, head, body)
        tree:add_le(f.ack_delay, head(4, 4))
        tree:add_le(f.ack_largest, body(0, 8))
        local high = body(0, 8):le_uint64()
        for run = 0, head(1, 1):uint() - 1 do
            local at = 8 + run * 8
            if at + 8 > body:len() then break end
            local low = high - body(at, 4):le_uint() + 1
            tree:add(f.ack_range, body(at, 8), tostring(low) .. "-" .. tostring(high))
            high = low - body(at + 4, 4):le_uint() - 1
        end
    end,
    [4] = function(tree, head, body)
        tree:add(f.adopted, head(1, 1))
        tree:add_le(f.max_frame, head(4, 4))
        tree:add(f.host, body(0, 16))
        tree:add_le(f.incarnation, body(16, 8))
        tree:add_le(f.echo, body(24, 8))
    end,
    [5] = function(tree, head, body)
        tree:add(f.reliable, head(1, 1))
        tree:add_le(f.flow, head(4, 4))
        tree:add(f.epoch, body(0, 16))
        tree:add_le(f.channel, body(16, 8))
        tree:add_le(f.first, body(24, 8))
    end,
    [6] = function(tree, head, body)
        tree:add(f.status, head(1, 1))
        tree:add_le(f.flow, head(4, 4))
        tree:add_le(f.cursor, body(0, 8))
        tree:add_le(f.limit_index, body(8, 4))
        tree:add_le(f.limit_bytes, body(16, 8))
    end,
    [7] = function(tree, head, body)
        tree:add_le(f.flow, head(4, 4))
        account(tree, body)
        tree:add_le(f.limit_index, body(48, 4))
        tree:add_le(f.limit_bytes, body(56, 8))
    end,
    [8] = function(tree, head, body)
        tree:add(f.close_last, head(1, 1))
        tree:add_le(f.flow, head(4, 4))
        tree:add_le(f.close_end, body(0, 8))
    end,
    [9] = function(tree, head, body)
        tree:add_le(f.flow, head(4, 4))
        account(tree, body)
    end,
    [13] = function(tree, head, body)
        tree:add_le(f.flow, head(4, 4))
        tree:add_le(f.ask_at, body(0, 8))
    end,
}

-- The flags that are not given out yet: a record with one of them is refused. Bundles have no times.
local unknown = { [1] = 0x0c, [2] = 0x0c, [4] = 0xfe, [5] = 0xfe, [8] = 0xfe, [12] = 0x0f }

-- The bytes of the optional fields that a message's flags speak of.
local function options(flags)
    return (bit.band(flags, 1) ~= 0 and 8 or 0) + (bit.band(flags, 2) ~= 0 and 8 or 0)
end

local function data(tree, record, kind, flags, head_bytes)
    tree:add_le(f.flow, record(4, 4))
    tree:add_le(f.index, record(8, 4))
    tree:add_le(f.lifetime, record(12, 4))
    tree:add_le(f.sequence, record(16, 7))
    tree:add(f.joined, record(23, 1))
    tree:add(f.priority, record(1, 1))
    if kind == 12 then
        local count, at = record(24, 2):le_uint(), head_bytes
        tree:add_le(f.count, record(24, 2))
        for _ = 1, count do
            if at + 8 > record:len() then return end
            local length = record(at, 4):le_uint()
            if length > 0 then
                if at + 8 + length > record:len() then return end
                tree:add(f.payload, record(at + 8, length))
            end
            at = at + 8 + math.ceil(length / 8) * 8
        end
        return
    end
    local at = 24
    if kind == 2 then
        tree:add_le(f.total, record(24, 4))
        tree:add_le(f.offset, record(28, 4))
        at = 32
    end
    if bit.band(flags, 1) ~= 0 then
        tree:add_le(f.timestamp, record(at, 8))
        at = at + 8
    end
    if bit.band(flags, 2) ~= 0 then tree:add_le(f.launch, record(at, 8)) end
    if record:len() > head_bytes then tree:add(f.payload, record(head_bytes)) end
end

local function records(tree, frame, stop)
    local at, names = HEADER, {}
    while at + 8 <= stop do
        local kind, flags, length = frame(at, 1):uint(), frame(at + 1, 1):uint(), frame(at + 2, 2):le_uint()
        if kind == 0 then break end
        local head_bytes = 8
        if kind == 1 then head_bytes = 24 + options(flags) elseif kind == 2 then head_bytes = 32 + options(flags)
        elseif kind == 12 then head_bytes = 32 end
        local known = bit.band(flags, unknown[kind] or 0) == 0
        if at + head_bytes + length > stop or length < (least[kind] or 0) or not known then
            tree:add_proto_expert_info(malformed)
            return names
        end
        local record = frame(at, head_bytes + length)
        local branch = tree:add(insane, record, kinds[kind] or ("Unknown kind " .. kind))
        branch:add(f.kind, record(0, 1))
        branch:add_le(f.rlength, record(2, 2))
        if kind == 1 or kind == 2 or kind == 12 then
            data(branch, record, kind, flags, head_bytes)
        elseif control[kind] then
            control[kind](branch, record, record(8, length):tvb())
        end
        names[#names + 1] = kinds[kind] or "?"
        at = at + math.ceil((head_bytes + length) / 8) * 8
    end
    return names
end

local function dissect_one(frame, pinfo, root)
    local length, flags = frame(4, 2):le_uint(), frame(2, 1):uint()
    local tree = root:add(insane, frame(0, length))
    tree:add(f.version, frame(1, 1))
    tree:add(f.flags, frame(2, 1))
    tree:add(f.sealed, frame(2, 1))
    tree:add(f.checked, frame(2, 1))
    tree:add_le(f.length, frame(4, 2))
    tree:add_le(f.key, frame(6, 2))
    tree:add_le(f.domain, frame(8, 4))
    tree:add_le(f.connection, frame(12, 4))
    tree:add_le(f.counter, frame(16, 8))
    tree:add_le(f.sent_us, frame(24, 4))
    tree:add_le(f.check, frame(28, 4))
    if bit.band(flags, 1) ~= 0 then
        tree:add(f.tag, frame(length - TAG, TAG))
        return { "Sealed" }
    end
    return records(tree, frame, length)
end

local function is_frame(buffer)
    return buffer:len() >= HEADER and buffer(0, 1):uint() == 0x49 and buffer(1, 1):uint() == 1
        and buffer(2, 1):uint() < 4 and buffer(3, 1):uint() == 0 and buffer(4, 2):le_uint() >= HEADER
        and buffer(4, 2):le_uint() <= buffer:len()
end

-- How far apart the frames lie: all but the last of one length, each perhaps filled up with zeros. All bytes if there is only one.
local function stride(buffer)
    local at, all = buffer(4, 2):le_uint(), buffer:len()
    while at < all and buffer(at, 1):uint() == 0 do at = at + 1 end
    if at < all and is_frame(buffer(at):tvb()) then return at end
    return all
end

function insane.dissector(buffer, pinfo, root)
    if not is_frame(buffer) then return 0 end
    pinfo.cols.protocol = "INSANE"
    local step, infos = stride(buffer), {}
    for at = 0, buffer:len() - 1, step do
        local frame = buffer(at, math.min(step, buffer:len() - at)):tvb()
        if not is_frame(frame) then break end
        infos[#infos + 1] = table.concat(dissect_one(frame, pinfo, root), ", ")
    end
    pinfo.cols.info = table.concat(infos, "; ")
    return buffer:len()
end

insane:register_heuristic("udp", function(buffer, pinfo, root)
    if not is_frame(buffer) then return false end
    insane.dissector(buffer, pinfo, root)
    return true
end)
-- For Decode As.
DissectorTable.get("udp.port"):add_for_decode_as(insane)
