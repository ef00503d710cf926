package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"

	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

type warnings chan string

func (w warnings) HandleWarningHeader(_ int, _, text string) { w <- text }

// reportsBy returns a client, like kubectl, of a server that handles requests for reports. The
// function warn sends the header early.
func reportsBy(t *testing.T, handle func(w http.ResponseWriter, warn func(string))) (versioned.Interface, warnings) {
	info := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rack.macrack.io", Resource: "compliancereports"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		withProgress(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			assert.Empty(t, req.Header.Get("Accept-Encoding"))
			handle(w, w.(*earlyHeader).warn)
		})).ServeHTTP(w, req.WithContext(genericapirequest.WithRequestInfo(req.Context(), info)))
	}))
	t.Cleanup(server.Close)
	received := make(warnings, 1)
	config := &restclient.Config{Host: server.URL, UserAgent: "kubectl/v1.36.0", WarningHandler: received}
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	return client, received
}

func TestProgressArrivesBeforeTheReport(t *testing.T) {
	arrived := make(chan struct{})
	client, received := reportsBy(t, func(w http.ResponseWriter, warn func(string)) {
		warn("20% after 1s")
		<-arrived
		warn("too late")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(`{"kind":"ComplianceReport","apiVersion":"rack.macrack.io/v1alpha1","status":{"verdict":"Compliant"}}`))
	})
	go func() {
		assert.Equal(t, "20% after 1s", <-received)
		close(arrived)
	}()
	report, err := client.RackV1alpha1().ComplianceReports().Get(t.Context(), "90d", metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, "Compliant", report.Status.Verdict)
	assert.Empty(t, received)
}

func TestAnErrorAfterTheProgress(t *testing.T) {
	fail := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcd is down","reason":"ServiceUnavailable","code":503}`))
	}
	for name, early := range map[string]bool{"header sent": true, "header not sent": false} {
		t.Run(name, func(t *testing.T) {
			client, _ := reportsBy(t, func(w http.ResponseWriter, warn func(string)) {
				if early {
					warn("20% after 1s")
				}
				fail(w)
			})
			_, err := client.RackV1alpha1().ComplianceReports().Get(t.Context(), "90d", metav1.GetOptions{})
			assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
			assert.ErrorContains(t, err, "etcd is down")
		})
	}
}

func TestProgressIsForKubectl(t *testing.T) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	for name, test := range map[string]struct {
		resource, agent, accept string
		want                    bool
	}{
		"kubectl get":           {"compliancereports", "kubectl/v1.36.0 (linux/amd64)", table, true},
		"kubectl get -o yaml":   {"compliancereports", "kubectl/v1.36.0 (linux/amd64)", "application/json", true},
		"kubectl of records":    {"auditrecords", "kubectl/v1.36.0 (linux/amd64)", table, false},
		"protobuf":              {"compliancereports", "kubectl/v1.36.0 (linux/amd64)", "application/vnd.kubernetes.protobuf,application/json", false},
		"another client":        {"compliancereports", "curl/8.0", "application/json", false},
		"a client with no name": {"compliancereports", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.Header.Set("User-Agent", test.agent)
			req.Header.Set("Accept", test.accept)
			info := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rack.macrack.io", Resource: test.resource}
			assert.Equal(t, test.want, isReportForKubectl(req.WithContext(genericapirequest.WithRequestInfo(req.Context(), info))))
		})
	}
}
