package instanceclass

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	list := &instance.InstanceClassList{Items: []instance.InstanceClass{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "small", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
			Spec:       instance.InstanceClassSpec{Resources: instance.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi")}},
		},
	}}
	assert.Equal(t, []string{
		"NAME   CPU  MEMORY  STORAGE  AGE",
		"small  4    8Gi     <none>   60s",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
