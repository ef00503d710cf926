package applelz4

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func header(magic string, sizes ...int) []byte {
	out := []byte(magic)
	for _, size := range sizes {
		out = binary.LittleEndian.AppendUint32(out, uint32(size))
	}
	return out
}

// encode compresses data in blocks as Apple does, without references to earlier blocks.
func encode(t *testing.T, data []byte, block int) []byte {
	t.Helper()
	var out []byte
	for len(data) > 0 {
		part := data[:min(block, len(data))]
		data = data[len(part):]
		compressed := make([]byte, lz4.CompressBlockBound(len(part)))
		n, err := lz4.CompressBlock(part, compressed, nil)
		require.NoError(t, err)
		if n == 0 || n >= len(part) {
			out = append(append(out, header("bv4-", len(part))...), part...)
			continue
		}
		out = append(append(out, header("bv41", len(part), n)...), compressed[:n]...)
	}
	return append(out, "bv4$"...)
}

func random(n int) []byte {
	data := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data)
	return data
}

func TestReader(t *testing.T) {
	text := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", 20_000))
	for name, data := range map[string][]byte{
		"nothing":  nil,
		"a byte":   {7},
		"text":     text,
		"zeros":    make([]byte, 3<<20+5),
		"random":   random(1<<20 + 3),
		"a medley": append(append(append([]byte{}, text...), random(100_000)...), make([]byte, 2<<20)...),
	} {
		for _, block := range []int{64 << 10, 1000, 3 << 20} {
			stream := encode(t, data, block)
			got, err := io.ReadAll(NewReader(bytes.NewReader(stream)))
			require.NoError(t, err, name)
			assert.True(t, bytes.Equal(data, got), "%s in blocks of %d", name, block)

			got, err = io.ReadAll(NewReader(iotest.OneByteReader(bytes.NewReader(stream[:min(len(stream), 5000)]))))
			if len(stream) > 5000 {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, name)
			}
			assert.True(t, bytes.HasPrefix(data, got), name)

			var out bytes.Buffer
			n, err := NewReader(bytes.NewReader(stream)).WriteTo(&out)
			require.NoError(t, err)
			assert.EqualValues(t, len(data), n)
			assert.True(t, bytes.Equal(data, out.Bytes()), "%s in blocks of %d", name, block)
		}
	}
}

// These blocks are written by hand, because the library's encoder does not produce them.
func TestBlocksReferToEarlierOnes(t *testing.T) {
	long := random(100_000)
	back := func(offset int) []byte { // no literals, 8 bytes from so far back; the block ends with a match
		return []byte{0x04, byte(offset), byte(offset >> 8)}
	}
	stream := append(header("bv4-", len(long)), long...)
	stream = append(stream, header("bv41", 8, 3)...)
	stream = append(stream, back(65535)...)
	stream = append(stream, header("bv41", 8, 3)...)
	stream = append(stream, back(8)...)
	stream = append(stream, "bv4$tail"...)
	src := bytes.NewReader(stream)
	got, err := io.ReadAll(NewReader(src))
	require.NoError(t, err)
	want := append([]byte{}, long...)
	want = append(want, long[len(long)-65535:len(long)-65535+8]...)
	want = append(want, want[len(long):]...)
	assert.True(t, bytes.Equal(want, got))
	tail, _ := io.ReadAll(src)
	assert.Equal(t, "tail", string(tail), "what follows the stream is left alone")
}

// A block as the Compression framework writes it: five literals, a match that overlaps itself, and
// literals.
func TestKnownStream(t *testing.T) {
	stream, err := hex.DecodeString("62763431" + "1e000000" + "0f000000" + "5f" + "68656c6c6f" + "0500" + "01" + "50" + "68656c6c6f" + "62763424")
	require.NoError(t, err)
	got, err := io.ReadAll(NewReader(bytes.NewReader(stream)))
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("hello", 6), string(got))
}

func TestCorrupt(t *testing.T) {
	good := encode(t, []byte(strings.Repeat("macOS ", 100)), 64<<10)
	change := func(at int, to ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[at:], to)
		return bad
	}
	for name, stream := range map[string][]byte{
		"no such block":           change(0, 'b', 'v', 'x', '2'),
		"longer than it says":     change(4, 10, 0),
		"shorter than it says":    change(4, 0xff, 0xff),
		"huge":                    change(4, 0, 0, 0, 0x7f),
		"compressed to nothing":   change(8, 0, 0, 0, 0),
		"compressed to a lot":     change(8, 0, 0, 0, 0x7f),
		"refers to before itself": append(header("bv41", 8, 3), 0x04, 8, 0),
	} {
		_, err := io.ReadAll(NewReader(bytes.NewReader(stream)))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for _, n := range []int{0, 3, 6, 11, 20, len(good) - 1} {
		_, err := io.ReadAll(NewReader(bytes.NewReader(good[:n])))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut to %d bytes", n)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("bv4-\x02\x00\x00\x00okbv4$"))
	f.Add(append(header("bv41", 8, 3), 0x04, 8, 0))
	f.Fuzz(func(t *testing.T, stream []byte) {
		n, err := io.Copy(io.Discard, io.LimitReader(NewReader(bytes.NewReader(stream)), 64<<20))
		if err == nil && n > 0 && len(stream) < 12 {
			t.Fatalf("%d bytes out of %d", n, len(stream))
		}
	})
}
