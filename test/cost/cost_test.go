package cost

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/apis/metadata"
)

// Limits of the validation of one request, including its answer.
const (
	maxBytes       = 10_000_000
	maxAllocations = 150_000
	maxAnswer      = 16 << 10
	maxTime        = 10 * time.Millisecond // reported by benchmarks, not checked by tests
)

// A cost is the cost of one validation.
type cost struct {
	bytes, allocations uint64
	answer             int // the length of the message
	time               time.Duration
}

func measure(v validator, in input) cost {
	obj, old := v.valid(), v.valid()
	in.apply(obj)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	answer := 0
	if errs := metadata.Brief(v.validate(obj, old)); len(errs) > 0 {
		answer = len(apierrors.NewInvalid(schema.GroupKind{Kind: "Kind"}, "name", errs).ErrStatus.Message)
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return cost{after.TotalAlloc - before.TotalAlloc, after.Mallocs - before.Mallocs, answer, took}
}

// Validation of any request allocates little and answers briefly. The test counts allocations, so
// it does not depend on the machine: slow validations have always been caused by a copy or a list
// of errors that grows with the request.
func TestCostOfValidation(t *testing.T) {
	for _, v := range validators {
		t.Run(v.name, func(t *testing.T) {
			for _, in := range inputs(v) {
				c := measure(v, in)
				assert.LessOrEqual(t, c.bytes, uint64(maxBytes), "bytes allocated: %s", in.name)
				assert.LessOrEqual(t, c.allocations, uint64(maxAllocations), "allocations: %s", in.name)
				assert.LessOrEqual(t, c.answer, maxAnswer, "length of the answer: %s", in.name)
			}
		})
	}
}

// BenchmarkValidation reports the worst time and the worst memory of each validator, over all
// inputs.
func BenchmarkValidation(b *testing.B) {
	for _, v := range validators {
		b.Run(v.name, func(b *testing.B) {
			all := inputs(v)
			var worst cost
			var slowest string
			for b.Loop() {
				worst, slowest = cost{}, ""
				for _, in := range all {
					c := measure(v, in)
					for range 5 { // other processes make it slower, so the minimum counts
						if c.time > worst.time {
							c.time = min(c.time, measure(v, in).time)
						}
					}
					worst.bytes = max(worst.bytes, c.bytes)
					if c.time > worst.time {
						worst.time, slowest = c.time, in.name
					}
				}
			}
			b.ReportMetric(float64(worst.time.Microseconds())/1e3, "worst-ms")
			b.ReportMetric(float64(worst.bytes)/1e6, "worst-MB")
			b.ReportMetric(0, "ns/op")
			if worst.time > maxTime || worst.bytes > maxBytes {
				b.Errorf("%v and %d bytes, of %v and %d: %s", worst.time, worst.bytes, maxTime, maxBytes, slowest)
			}
		})
	}
}

func TestEveryValidatorIsMeasured(t *testing.T) {
	measured := map[string]bool{}
	for _, v := range validators {
		measured[v.name] = true
	}
	files, err := filepath.Glob("../../pkg/apis/*/validation/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Validate") {
				assert.True(t, measured[f.Name.Name], "%s of %s is not measured", f.Name.Name, file)
			}
		}
	}
}
